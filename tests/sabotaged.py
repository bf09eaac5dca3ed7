#!/usr/bin/env python3
"""Makes a copy of a built binary in which a guard of the scripts is off: what does the checker of `make chaos` say to it?

    python3 tests/sabotaged.py                        names the guards
    python3 tests/sabotaged.py --check                only that each is there; tests do that
    python3 tests/sabotaged.py debit target/debug/tickfleet target/debug/sabotaged
    make chaos SECONDS=60 BINARY=target/debug/sabotaged

Several names, with commas between, switch off as many guards.

Scripts are texts in the binary. What is longer or shorter than the guard is made up for by a comment of the same script, so
that all else stays in its place.
"""

import pathlib
import sys

VERBS = pathlib.Path(__file__).resolve().parent.parent / "shared/store/src"

# Name: what is switched off, the script, the guard, what is there instead, and a comment of the script that gives way.
GUARDS = {
    "debit": (
        "ticks are not debited",
        "script/fragments/budget.lua",
        "a.tick_used, a.day_used, t.day_used = a.tick_used + k,",
        "a.tick_used, a.day_used, t.day_used = a.tick_used + 0,",
        None,
    ),
    "begin-record": (
        "that a call has begun is not kept",
        "verbs/slices/begin.lua",
        "call('HSET', key, TURN.started, fence, TURN.begun, mine)\n  end",
        "call('HSET', key, TURN.started, fence)\n  end",
        "-- begin: fences the start of a call, so that a side effect is never begun twice (rule 7), ",
    ),
    "begin-fence": (
        "whoever has lost a slice begins its calls",
        "verbs/slices/begin.lua",
        "if in_force ~= fence then return 'STALE' end\n  if position < num(done or 0) then return 'DONE' end",
        "if position < num(done or 0) then return 'DONE' end",
        "-- begin: fences the start of a call, so that a side effect is never begun twice (rule 7), ",
    ),
    "settle-fence": (
        "whoever has lost a slice settles its calls",
        "verbs/slices/settle.lua",
        "return in_force == fence and not ended[tt]",
        "return in_force and not ended[tt]",
        "-- settle: commits results with their audit; ends the slice, and the turn with one reply (rules 3, 4, 6).",
    ),
    "atomic-settle": (
        "one in nine times a turn ends without its reply, as if whoever ends it died between two steps",
        "verbs/slices/settle.lua",
        "  reply_to(tenant, inbox, whole)\n",
        "  if now % 9 > 0 then reply_to(tenant, inbox, whole) end\n",
        "-- one field (see `write` in admit), which begins with the fence and the number of calls. Answers nil where it is not so,",
    ),
    "heartbeat": (
        "slices are taken from workers that live",
        "verbs/{}/reap.lua",
        "  if beat <= now then\n",
        "  if 1 <= now then\n",
        "-- reap: takes back what consumers hold whose heartbeat is gone.",
    ),
}


def script(path: str) -> str:
    """The text of a script, in whichever folder it lies."""
    (found,) = VERBS.glob(path.replace("{}", "*"))
    return found.read_text()


def sabotaged(text: str, name: str) -> str:
    """The script without that guard, as long as before."""
    _, _, guard, instead, comment = GUARDS[name]
    if text.count(guard) != 1:
        raise SystemExit(f"{name}: the guard is not there, or not once; tests/sabotaged.py has to be mended")
    text, longer = text.replace(guard, instead), len(instead.encode()) - len(guard.encode())
    if longer == 0:
        return text
    if comment is None or text.count(comment) != 1 or longer > len(comment) - 3:
        raise SystemExit(f"{name}: no comment gives way; tests/sabotaged.py has to be mended")
    end = "\n" if comment.endswith("\n") else ""
    body = comment.removesuffix("\n")
    body = body[: len(body) - longer] if longer > 0 else body + "." * -longer
    return text.replace(comment, body + end)


def main() -> int:
    names = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if not names:
        for name, (what, path, *_) in GUARDS.items():
            text = script(path)
            assert len(sabotaged(text, name).encode()) == len(text.encode()), name
            print(f"{name:14} {what}")
        return 0
    these, source, target = names
    whole = pathlib.Path(source).read_bytes()
    changed = {}
    for name in these.split(","):
        path = GUARDS[name][1]
        changed[path] = sabotaged(changed.get(path, script(path)), name)
    for path, text in changed.items():
        if whole.count(script(path).encode()) == 0:
            raise SystemExit(f"{source} has not the script {path} of these sources: build it first")
        whole = whole.replace(script(path).encode(), text.encode())
    copy = pathlib.Path(target)
    copy.write_bytes(whole)
    copy.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
