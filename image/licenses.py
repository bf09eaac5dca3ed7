"""Writes the license files of the crates and scripts that the binary contains into one file.

    python3 licenses.py METADATA SOURCES OUTPUT

METADATA is the output of `cargo metadata --format-version 1` for the platform. SOURCES has a folder <crate>-<version>
with the license files of each crate: cargo's own folder (registry/src/*), or a copy. A text that several crates ship is
written once, with their names. Requires only Python's standard library.
"""

import glob
import json
import os
import sys

import sbom

NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")
RULE = "=" * 100
# The binary contains these files. Their licenses are in the repository or next to this script.
VENDORED = [("Preact 11.2.0 (MIT), in the console", "cli/gateway/src/console/preact.LICENSE.txt")]


def vendored():
    """Yields the title and license of each third-party file."""
    here = os.path.dirname(os.path.abspath(__file__))
    for title, path in VENDORED:
        places = [os.path.join(here, os.pardir, path), os.path.join(here, os.path.basename(path))]
        found = next((place for place in places if os.path.isfile(place)), None)
        if found is None:
            sys.exit(f"licenses: no {path}, in the repository or beside this script")
        with open(found, encoding="utf-8") as file:
            yield f"{title}\n\n{file.read().strip()}"


def texts(folder):
    """Yields the texts of a crate's license files."""
    for path in sorted(glob.glob(os.path.join(folder, "*"))):
        name = os.path.basename(path).lower()
        if os.path.isfile(path) and name.startswith(NAMES) and not name.endswith((".rs", ".html")):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield file.read().strip()


def gathered(metadata, sources):
    """Returns the text of the output, and the number of crates that it covers."""
    kept, packages = sbom.without_macros(metadata, *sbom.linked(metadata))
    others = [packages[crate] for crate in kept if packages[crate]["source"] is not None]
    crates, bare = {}, []
    for package in sorted(others, key=lambda package: (package["name"], package["version"])):
        folder = os.path.join(sources, f"{package['name']}-{package['version']}")
        if not os.path.isdir(folder) and not os.path.isdir(sources):
            sys.exit(f"licenses: no folder {sources}")
        title = f"{package['name']} {package['version']} ({package['license'] or 'see below'})"
        found = list(texts(folder))
        for text in found:
            crates.setdefault(text, []).append(title)
        if not found:
            bare.append(title)
    if len(bare) > len(others) // 4:
        sys.exit(f"licenses: {sources} has no licence of {len(bare)} of {len(others)} crates; is it the folder of their sources?")
    parts = ["Tickfleet is linked with these crates. Each licence stands below the crates that ship it."]
    parts.append("These ship no text of the licence that they name:\n\n" + "\n".join(bare))
    parts += vendored()
    parts += ["\n".join(titles) + "\n\n" + text for text, titles in sorted(crates.items(), key=lambda item: item[1])]
    return f"\n\n{RULE}\n\n".join(parts) + "\n", len(others)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    _, metadata, sources, output = sys.argv
    with open(metadata, encoding="utf-8") as file:
        text, crates = gathered(json.load(file), sources)
    with open(output, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"licences of {crates} crates")


if __name__ == "__main__":
    main()
