"""Prints the version of the workspace, which every package, image and chart must have.

    python3 versions.py [TAG]

With TAG (v1.2.3), the version must equal the tag, and the changelog must have a section for it. Python's standard
library only. If something differs, exits with 1 and the differences.
"""

import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def found():
    """Yields each place that has a version, and the version."""
    for path, pattern in (
        ("Cargo.toml", r'^\[workspace\.package\]\nversion = "(.+)"$'),
        ("helm/tickfleet/Chart.yaml", r"^version: (.+)$"),
        ("helm/tickfleet/Chart.yaml", r'^appVersion: "(.+)"$'),
        ("python/pyproject.toml", r'^version = "(.+)"$'),
        ("compose.yaml", r"^  image: tickfleet:(.+)$"),
        ("Dockerfile", r"^ARG VERSION=(.+)$"),
    ):
        versions = re.findall(pattern, read(path), re.MULTILINE)
        yield from ((path, version) for version in versions or ["none"])
    yield "typescript/package.json", json.loads(read("typescript/package.json"))["version"]
    yield "typescript/package-lock.json", json.loads(read("typescript/package-lock.json"))["version"]


def complaints(tag=None):
    """Compares all versions with the workspace's version, which is the first."""
    places = list(found())
    version = places[0][1]
    wrong = [f"{path} says {other}, Cargo.toml {version}" for path, other in places if other != version]
    if tag is not None and tag != f"v{version}":
        wrong.append(f"the tag is {tag}, the version {version}")
    if tag is not None and not re.search(rf"^## {re.escape(version)}\b", read("CHANGELOG.md"), re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no section {version}")
    return version, wrong


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    version, wrong = complaints(*sys.argv[1:])
    if wrong:
        sys.exit("\n".join(wrong))
    print(version)


if __name__ == "__main__":
    main()
