"""Fetches the JSON-Schema-Test-Suite. Unpacks the drafts that the schemas of the fleet's tools use.

    python3 schema_suite.py OUTDIR

The suite comes with the source package of the PyPI package `jsonschema` (MIT, like the suite), pinned by version and
SHA-256. It is kept below OUTDIR, which must not be committed. OUTDIR then holds <draft>/<file>.json and
<draft>/optional/…, byte for byte as in the suite: numbers keep their digits.

Python's standard library only, 3.9 and later.
"""

import os
import sys
import tarfile

import pypi

PACKAGE = "jsonschema"
VERSION = "4.23.0"
SDIST = "jsonschema-4.23.0.tar.gz"
SHA256 = "d71497fef26351a33265337fa77ffeb82423f3ea21283cd9467bb03999266bc4"
TESTS = "jsonschema-4.23.0/json/tests/"
DRAFTS = ("draft7", "draft2020-12")


def unpack(sdist, outdir):
    with tarfile.open(sdist) as archive:
        for member in archive:
            inside = member.name[len(TESTS) :] if member.name.startswith(TESTS) else ""
            if not member.isfile() or not inside.endswith(".json") or inside.split("/")[0] not in DRAFTS:
                continue
            path = os.path.join(outdir, *inside.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            pypi.write_whole(path, archive.extractfile(member).read())


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: schema_suite.py OUTDIR")
    outdir = os.path.abspath(sys.argv[1])
    complete = os.path.join(outdir, "complete")
    if os.path.exists(complete):
        return
    os.makedirs(outdir, exist_ok=True)
    try:
        unpack(pypi.fetch(outdir, PACKAGE, VERSION, SDIST, SHA256), outdir)
    except pypi.BadData as error:
        sys.exit(f"schema_suite.py: {error}")
    pypi.write_whole(complete, b"")


if __name__ == "__main__":
    main()
