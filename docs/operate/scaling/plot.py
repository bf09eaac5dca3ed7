#!/usr/bin/env python3
"""Draws docs/operate/scaling/run.svg from docs/operate/scaling/run.csv. Requires only Python's standard library.

    python3 docs/operate/scaling/plot.py docs/operate/scaling/run.csv docs/operate/scaling/run.svg
"""

import csv
import sys

WIDTH, LEFT, RIGHT, PANEL, GAP, TOP = 860, 56, 20, 150, 44, 34
BLUE, ORANGE, GREY, GREEN = "#1f6feb", "#d9730d", "#8b949e", "#2da44e"


def nice(value):
    """Returns the smallest of 1, 2, 5, 10, 20… that is at least `value`."""
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if step * factor >= value:
                return step * factor
        step *= 10


class Panel:
    """A diagram. All diagrams share the same time axis."""

    def __init__(self, number, title, seconds, top):
        self.y0 = TOP + number * (PANEL + GAP)
        self.title, self.seconds, self.top = title, seconds, nice(top)
        self.parts = []

    def x(self, t):
        return LEFT + (WIDTH - LEFT - RIGHT) * t / self.seconds

    def y(self, value):
        return self.y0 + PANEL * (1 - min(value, self.top) / self.top)

    def line(self, points, colour, steps=False, dash=""):
        path, last = [], None
        for t, value in points:
            if steps and last is not None:
                path.append(f"{self.x(t):.1f},{self.y(last):.1f}")
            path.append(f"{self.x(t):.1f},{self.y(value):.1f}")
            last = value
        dash = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')

    def shade(self, begin, end, text):
        x, width = self.x(begin), self.x(end) - self.x(begin)
        self.parts.append(f'<rect x="{x:.1f}" y="{self.y0}" width="{width:.1f}" height="{PANEL}" fill="{GREY}" opacity="0.15"/>')
        middle = x + width / 2
        self.parts.append(f'<text x="{middle:.1f}" y="{self.y0 + 20}" text-anchor="middle" fill="#57606a">{text}</text>')

    def legend(self, entries):
        x = LEFT + 8 * len(self.title) + 24
        for text, colour in entries:
            self.parts.append(f'<text x="{x}" y="{self.y0 - 8}" fill="{colour}">{text}</text>')
            x += 7 * len(text) + 18

    def svg(self):
        out = [f'<text x="{LEFT}" y="{self.y0 - 8}" font-weight="bold" fill="#24292f">{self.title}</text>']
        for n in range(5):
            value = self.top * n / 4
            y = self.y(value)
            out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#d0d7de" stroke-width="0.6"/>')
            out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#57606a">{value:g}</text>')
        every = nice(self.seconds / 12)
        t = 0.0
        while t <= self.seconds:
            out.append(f'<text x="{self.x(t):.1f}" y="{self.y0 + PANEL + 15}" text-anchor="middle" fill="#57606a">{t:g}</text>')
            t += every
        return out + self.parts


def main():
    with open(sys.argv[1], newline="", encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    seconds = rows[-1]["t_s"]
    column = lambda name: [(row["t_s"], row[name]) for row in rows]
    work = [(row["t_s"], row["ready"] + row["running"]) for row in rows]
    most = max(value for _, value in work)

    load = Panel(0, "Load", seconds, max(row["load_per_s"] for row in rows))
    load.line(column("load_per_s"), BLUE, steps=True)
    load.legend([("turns submitted per second", BLUE)])
    metric = Panel(1, "The metric", seconds, most)
    metric.line(work, BLUE)
    metric.line(column("ready"), ORANGE)
    metric.line(column("target"), GREY, steps=True, dash="4 3")
    metric.legend([("ready + running", BLUE), ("ready alone", ORANGE), ("target: workers x slots x 80 %", GREY)])
    workers = Panel(2, "Workers", seconds, max(row["workers"] for row in rows))
    workers.line(column("workers"), GREEN, steps=True)
    workers.legend([("as the autoscaler decided", GREEN)])
    waits = Panel(3, "Time to reply", seconds, max(row["p95_ms"] for row in rows))
    waits.line(column("p95_ms"), BLUE)
    waits.legend([("95th percentile, ms", BLUE)])

    # Turns that are open although none is submitted wait for a cap.
    capped = [row["t_s"] for row in rows if row["load_per_s"] == 0 and row["open"] > 20]
    if capped:
        workers.shade(capped[0], capped[-1], "capped work only")

    panels = [load, metric, workers, waits]
    height = TOP + len(panels) * (PANEL + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for panel in panels:
        out += panel.svg()
    out.append(f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end" fill="#57606a">seconds</text>')
    out.append("</svg>")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


main()
