"""Runs a command in a pseudoterminal, and checks a script of steps against the screen.

    terminal.py COLUMNS ROWS STEPS COMMAND...

STEPS is a JSON list of steps. {"see": regex} waits until the screen matches the regex, and {"gone": regex} until the
screen no longer matches. {"key": text} types, and {"signal": number} sends a signal. {"changes": regex} waits until the
regex matches another text than at first. Prints JSON: the exit code, whether the terminal's settings were restored,
whether the alternate screen was left and the cursor is shown, and the last screen.
"""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

PATIENCE_S = 30


class Screen:
    """A terminal's screen. Handles cursor moves, erasing and text; ignores colors."""

    SEQUENCE = re.compile(r"\x1b\[([?>]?)([0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78]")

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.cells = {}
        self.x = self.y = 0
        self.raw = self.rest = ""

    def feed(self, text):
        self.raw += text
        text = self.rest + text
        self.rest = ""
        while text:
            if text[0] == "\x1b":
                found = self.SEQUENCE.match(text)
                if not found:
                    self.rest = text
                    return
                text = text[found.end():]
                if found.group(3) and not found.group(1):
                    self.control(found.group(3), [int(n or 0) for n in found.group(2).split(";")])
                continue
            char, text = text[0], text[1:]
            if char == "\r":
                self.x = 0
            elif char == "\n":
                self.y += 1
            elif char >= " ":
                self.cells[self.x, self.y] = char
                self.x += 1

    def control(self, letter, numbers):
        if letter in "Hf":
            numbers += [1, 1]
            self.y, self.x = max(numbers[0], 1) - 1, max(numbers[1], 1) - 1
        elif letter == "G":
            self.x = max(numbers[0], 1) - 1
        elif letter == "C":
            self.x += max(numbers[0], 1)
        elif letter == "B":
            self.y += max(numbers[0], 1)
        elif letter == "J":
            self.cells = {}
        elif letter == "K":
            self.cells = {at: char for at, char in self.cells.items() if at[1] != self.y or at[0] < self.x}

    def text(self):
        line = lambda y: "".join(self.cells.get((x, y), " ") for x in range(self.columns)).rstrip()
        return "\n".join(line(y) for y in range(self.rows))


def main():
    columns, rows, steps, command = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    before = termios.tcgetattr(theirs)
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    screen = Screen(columns, rows)

    def read(wait_s):
        if select.select([ours], [], [], wait_s)[0]:
            # A read may end in the middle of a multi-byte character. The next read completes the character.
            nonlocal half
            data = half + os.read(ours, 65536)
            cut = max((n for n in range(4) if is_whole(data[:len(data) - n])), key=lambda n: -n)
            data, half = data[:len(data) - cut], data[len(data) - cut:]
            screen.feed(data.decode())

    half = b""

    def wait(what, done):
        end = time.monotonic() + PATIENCE_S
        while not done():
            # The last output may not have been read when the process ends, so one more read follows.
            is_over = child.poll() is not None or time.monotonic() > end
            read(0.2)
            if is_over and not done():
                sys.exit(f"waited in vain for {what} (exit code {child.poll()}); the screen:\n{screen.text()}")

    for step in steps:
        if "see" in step:
            wait(step, lambda: re.search(step["see"], screen.text()))
        if "gone" in step:
            wait(step, lambda: not re.search(step["gone"], screen.text()))
        if "changes" in step:
            find = lambda: (re.search(step["changes"], screen.text()) or [None])[0]
            wait(step, find)
            first = find()
            wait(step, lambda: find() not in (None, first))
        if "key" in step:
            os.write(ours, step["key"].encode())
        if "signal" in step:
            child.send_signal(step["signal"])
    shown = screen.text()
    end = time.monotonic() + PATIENCE_S
    while child.poll() is None and time.monotonic() < end:
        read(0.1)
    if child.poll() is None:
        child.kill()
        sys.exit("it did not end")
    read(0.1)
    print(json.dumps({
        "exit": child.returncode,
        "restored": termios.tcgetattr(theirs) == before,
        "left_alternate_screen": screen.raw.rfind("\x1b[?1049l") > screen.raw.rfind("\x1b[?1049h") >= 0,
        "cursor_shown": screen.raw.rfind("\x1b[?25h") > screen.raw.rfind("\x1b[?25l"),
        "screen": shown,
    }))


def is_whole(data):
    try:
        data.decode()
        return True
    except UnicodeDecodeError:
        return False


main()
