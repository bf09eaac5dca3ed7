"""Fetches CanIToolCall's raw model outputs and the calls that they should be parsed into.

    python3 canitoolcall.py OUTDIR

The data comes from the PyPI package `canitoolcall` (Apache-2.0; each fixture names its own source and license, from MIT
and Apache-2.0 to quotes of bug reports), pinned by version and SHA-256. It is kept below OUTDIR, which must not be
committed. A second run finds the output of the first and returns at once.

OUTDIR then has fixtures.jsonl, with one object per line, in the order of the files:

  {id, family, tags, raw, calls: [{name, arguments}], broken}
                     `calls` is empty where none is expected; `broken` means that the output is cut or malformed, so
                     that a parser may reject it

Python's standard library only, 3.9 and later.
"""

import json
import os
import sys
import zipfile

import pypi

PACKAGE = "canitoolcall"
VERSION = "0.1.1"
WHEEL = "canitoolcall-0.1.1-py3-none-any.whl"
SHA256 = "a8a0ea82584cfdb00e737f2853d20fb5f233002aeb961ba735f574a225eceb15"
FIXTURES = "canitoolcall/_data/fixtures/"
OUTPUT = "fixtures.jsonl"


def rows(wheel):
    for path in sorted(wheel.namelist()):
        if not (path.startswith(FIXTURES) and path.endswith(".jsonl")):
            continue
        # splitlines() would also split at other line separators, which strings in the data contain.
        for line in wheel.read(path).decode("utf-8").split("\n"):
            if line.strip():
                yield row(json.loads(line))


def row(fixture):
    expected = fixture.get("expected")
    return {
        "id": fixture["id"],
        "family": fixture["family"],
        "tags": fixture["tags"],
        "raw": fixture["raw_output"],
        "calls": expected["tool_calls"] if expected else [],
        "broken": expected is None or bool({"truncated", "malformed"} & set(fixture["tags"])),
    }


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: canitoolcall.py OUTDIR")
    outdir = os.path.abspath(sys.argv[1])
    manifest_path = os.path.join(outdir, "manifest.json")
    manifest = {"version": VERSION, "sha256": SHA256, "converter": pypi.sha256_of(__file__)}
    try:
        with open(manifest_path, encoding="utf-8") as file:
            if json.load(file) == manifest and os.path.exists(os.path.join(outdir, OUTPUT)):
                return
    except (OSError, ValueError):
        pass
    os.makedirs(outdir, exist_ok=True)
    try:
        with zipfile.ZipFile(pypi.fetch(outdir, PACKAGE, VERSION, WHEEL, SHA256)) as wheel:
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(wheel))
    except pypi.BadData as error:
        sys.exit(f"canitoolcall.py: {error}")
    pypi.write_whole(os.path.join(outdir, OUTPUT), lines.encode("utf-8"))
    pypi.write_whole(manifest_path, json.dumps(manifest).encode("utf-8"))


if __name__ == "__main__":
    main()
