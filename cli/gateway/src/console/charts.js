import { count, percent, span, timeOfDay, utc, local } from "./format.js";
import { h } from "./ui.js";

/** Draws a line of recent values. */
export function spark(values, mood = "") {
  if (values.length < 2) return h("svg", { class: "spark", "aria-hidden": "true" });
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, at) => `${((100 * at) / (values.length - 1)).toFixed(1)},${(22 - (20 * value) / most).toFixed(1)}`);
  return h("svg", { class: `spark ${mood}`, viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("polygon", { points: `0,24 ${points.join(" ")} 100,24` }), h("polyline", { points: points.join(" ") }));
}

/** Draws a bar for a share, with the percentage beside it. */
export function share(part, all, kind) {
  const width = all ? Math.min(100, (100 * part) / all) : 0;
  return h("span", { class: "share" },
    h("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      h("rect", { class: "track", width: 100, height: 10 }), h("rect", { class: kind, width, height: 10 })),
    h("span", {}, percent(part, all)));
}

export const SERIES = [["ok", "ok"], ["refused", "refused"], ["failed", "failed"], ["unknown", "unknown"]];

/**
 * Draws stacked bars. `points` are `{at, ok, refused, failed, unknown}`, evenly spaced by `step` from `from` to
 * `until`. `marks` are `{at, text}`: times with a label.
 */
export function stack({ points, from, until, step, marks = [], label, height = 108 }) {
  const all = (point) => SERIES.reduce((sum, [name]) => sum + (point[name] ?? 0), 0);
  const most = Math.max(1, ...points.map(all));
  const slots = Math.max(1, Math.round((until - from) / step));
  const wide = 1000 / slots;
  const bars = points.filter((point) => point.at >= from && point.at < until).map((point) => {
    let top = height;
    const x = Math.round(((point.at - from) / step)) * wide;
    const words = SERIES.filter(([name]) => point[name]).map(([name]) => `${name} ${count(point[name])}`).join(", ");
    return h("g", { key: point.at }, h("title", {}, `${local(point.at)}: ${words || "no calls"}`),
      h("rect", { class: "hit", x, y: 0, width: wide, height }),
      SERIES.map(([name]) => {
        const tall = ((height - 6) * (point[name] ?? 0)) / most;
        top -= tall;
        return tall ? h("rect", { key: name, class: name, x: x + wide * 0.06, y: top, width: wide * 0.88, height: tall }) : null;
      }));
  });
  const lines = marks.filter(({ at }) => at >= from && at <= until).map(({ at, text }) => {
    const x = (1000 * (at - from)) / (until - from);
    return h("g", { key: `mark-${at}` }, h("title", {}, `${text}, ${local(at)}`), h("line", { class: "mark", x1: x, x2: x, y1: 0, y2: height }), h("rect", { class: "hit", x: x - 6, y: 0, width: 12, height }));
  });
  const far = until - from > 90_000_000;
  const tick = (part) => {
    const at = from + (until - from) * part;
    return h("span", { key: part, title: utc(at) }, far ? local(at).slice(0, -3) : until - from > 600_000 ? timeOfDay(at).slice(0, 5) : timeOfDay(at));
  };
  return h("figure", { class: "stack" },
    h("svg", { viewBox: `0 0 1000 ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      h("line", { class: "grid", x1: 0, x2: 1000, y1: 6, y2: 6 }), h("line", { class: "grid", x1: 0, x2: 1000, y1: (height + 6) / 2, y2: (height + 6) / 2 }), bars, lines),
    h("span", { class: "most" }, count(most)),
    h("figcaption", {}, [0, 0.25, 0.5, 0.75, 1].map(tick)));
}

/**
 * Draws spans over time. `rows` are `{name, parts: [{from, until, kind, text}]}`; a part without `until` is a point.
 */
export function waterfall({ rows, from, until, label }) {
  const all = Math.max(1, until - from);
  const at = (ms) => Math.max(0, Math.min(1000, (1000 * (ms - from)) / all));
  return h("div", { class: "waterfall", role: "table", "aria-label": label },
    rows.map((row, line) => h("div", { key: line, class: "lane", role: "row" },
      h("span", { class: "lane-name", role: "rowheader" }, row.name),
      h("span", { role: "cell", class: "lane-bars" },
        h("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", "aria-hidden": "true" },
          h("rect", { class: "track", width: 1000, height: 16 }),
          row.parts.map((part, number) => h("rect", {
            key: number, class: part.kind, x: Math.min(996, at(part.from)), y: 2, height: 12, width: Math.max(4, at(part.until ?? part.from) - at(part.from)),
          }, h("title", {}, part.text))))),
      h("span", { role: "cell", class: "lane-text" }, row.text ?? ""))),
    h("div", { class: "lane axis", "aria-hidden": "true" }, h("span"),
      h("span", { class: "ticks" }, [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", { key: part }, part ? `+${span(all * part)}` : timeOfDay(from)))), h("span")));
}
