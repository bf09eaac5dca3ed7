#!/usr/bin/env python3
"""Writes the Grafana dashboards of the chart: helm/dashboards/generate.py

With --check, writes nothing. If files are out of date, prints their names and exits with 1.
"""

import json
import sys
from pathlib import Path

import fleet
import governance
import redis_server
import reliability

FOLDER = Path(__file__).resolve().parent.parent / "tickfleet" / "dashboards"
MAKERS = {"fleet": fleet, "governance": governance, "reliability": reliability, "redis": redis_server}


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    texts = {f"{name}.json": json.dumps(maker.make(), indent=2) + "\n" for name, maker in MAKERS.items()}
    if not arguments:
        for name, text in texts.items():
            (FOLDER / name).write_text(text)
        return 0
    there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    differ = sorted(name for name in texts.keys() | there.keys() if texts.get(name) != there.get(name))
    for name in differ:
        print(f"{name} is not what helm/dashboards/generate.py writes", file=sys.stderr)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main(sys.argv[1:]))
