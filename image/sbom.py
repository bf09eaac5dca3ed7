"""Writes the SBOM of the image as CycloneDX 1.5 JSON.

    python3 sbom.py METADATA ROOTFS OUTPUT

METADATA is the output of `cargo metadata --format-version 1` for the image's platform. ROOTFS is the folder laid out by
image/rootfs, or the root of the image with Python or Node.js. The SBOM lists the crates that the binary is linked with:
its normal dependencies and theirs, without build scripts, procedural macros and tests. It also lists the Debian
packages, Python, Node.js and their packages that are installed in ROOTFS. Requires only Python's standard library.
"""

import datetime
import email.parser
import glob
import hashlib
import json
import os
import re
import sys

BINARY = "usr/bin/tickfleet"
PACKAGE = "tickfleet"


def linked(metadata):
    """Returns the id of the program's crate. Also returns the ids of all linked crates, with their direct
    dependencies."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    first = next(package["id"] for package in metadata["packages"] if package["name"] == PACKAGE)
    reached, open_ids = {}, [first]
    while open_ids:
        crate = open_ids.pop()
        if crate in reached:
            continue
        # `kind` is null for a normal dependency. Build and dev dependencies are not in the binary.
        normal = [dep["pkg"] for dep in nodes[crate]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        reached[crate] = sorted(normal)
        open_ids += normal
    return first, reached


def compiled_only(package):
    """Returns true if the crate is a procedural macro. It runs in the compiler and is not in the binary."""
    return any("proc-macro" in target["kind"] for target in package["targets"])


def without_macros(metadata, first, reached):
    """Returns `reached` without procedural macros and their own dependencies, and the packages of METADATA by
    id."""
    packages = {package["id"]: package for package in metadata["packages"]}
    kept, open_ids = {}, [first]
    while open_ids:
        crate = open_ids.pop()
        if crate not in kept:
            kept[crate] = [dep for dep in reached[crate] if not compiled_only(packages[dep])]
            open_ids += kept[crate]
    return kept, packages


def crate_component(package):
    """Returns the component of a crate."""
    url = f"pkg:cargo/{package['name']}@{package['version']}"
    component = {"type": "library", "bom-ref": url, "name": package["name"], "version": package["version"], "purl": url}
    if package.get("license"):
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return component


def debian_components(root):
    """Yields the Debian packages with a status from image/rootfs. Without one, yields the installed packages of
    dpkg."""
    folder = os.path.join(root, "var/lib/dpkg/status.d")
    paths = sorted(glob.glob(os.path.join(folder, "*"))) or glob.glob(os.path.join(root, "var/lib/dpkg/status"))
    for path in paths:
        with open(path, encoding="utf-8") as file:
            paragraphs = file.read().strip().split("\n\n")
        for fields in map(paragraph, paragraphs):
            if fields["Status"] == "install ok installed":
                url = f"pkg:deb/debian/{fields['Package']}@{fields['Version']}?arch={fields['Architecture']}"
                yield library(fields["Package"], fields["Version"], url)


def paragraph(text):
    """Returns the fields of one package. Reads only the first line of each field."""
    rows = (line.partition(": ") for line in text.splitlines() if not line.startswith(" "))
    return {key: value.strip() for key, colon, value in rows if colon}


def library(name, version, url):
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def python_components(root):
    """Yields Python, if it is installed, and its packages."""
    for folder in sorted(glob.glob(os.path.join(root, "usr/local/lib/python3.*/site-packages"))):
        # The header for compiling extension modules names the version.
        python = os.path.basename(os.path.dirname(folder))
        with open(os.path.join(root, "usr/local/include", python, "patchlevel.h"), encoding="utf-8") as file:
            version = re.search(r'^#define\s+PY_VERSION\s+"([^"]+)"', file.read(), re.MULTILINE)[1]
        yield library("python", version, f"pkg:generic/python@{version}")
        for path in sorted(glob.glob(os.path.join(folder, "*.dist-info/METADATA"))):
            with open(path, encoding="utf-8") as file:
                fields = email.parser.HeaderParser().parse(file)
            name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
            # A package that was installed from a file is not the package with that name in PyPI.
            own = os.path.exists(os.path.join(os.path.dirname(path), "direct_url.json"))
            url = f"pkg:generic/python-{name}" if own else f"pkg:pypi/{name}"
            yield library(name, fields["Version"], f"{url}@{fields['Version']}")


def node_components(root):
    """Yields Node.js, if it is installed, and its global packages."""
    header = os.path.join(root, "usr/local/include/node/node_version.h")
    if not os.path.exists(header):
        return
    with open(header, encoding="utf-8") as file:
        numbers = dict(re.findall(r"^#define NODE_(MAJOR|MINOR|PATCH)_VERSION (\d+)", file.read(), re.MULTILINE))
    version = ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))
    yield library("node", version, f"pkg:generic/node@{version}")
    # Dependencies of npm are inside npm's own folder, and are not listed.
    for path in sorted(glob.glob(os.path.join(root, "usr/local/lib/node_modules/*/package.json"))):
        with open(path, encoding="utf-8") as file:
            package = json.load(file)
        yield library(package["name"], package["version"], f"pkg:npm/{package['name']}@{package['version']}")


def document(metadata, root):
    """Returns the whole SBOM."""
    first, reached = linked(metadata)
    kept, packages = without_macros(metadata, first, reached)
    crates = {crate: crate_component(packages[crate]) for crate in kept}
    with open(os.path.join(root, BINARY), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    main = {**crates.pop(first), "type": "application", "hashes": [{"alg": "SHA-256", "content": digest}]}
    installed = [*debian_components(root), *python_components(root), *node_components(root)]
    refs = {crate: component["bom-ref"] for crate, component in [(first, main), *crates.items()]}
    edges = [{"ref": refs[crate], "dependsOn": sorted({refs[dep] for dep in kept[crate]})} for crate in kept]
    edges[0]["dependsOn"] += [component["bom-ref"] for component in installed]
    stamp = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.datetime.now(datetime.timezone.utc)
    when = datetime.datetime.fromtimestamp(int(stamp), datetime.timezone.utc) if stamp else now
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": main},
        "components": sorted([*crates.values(), *installed], key=lambda component: component["purl"]),
        "dependencies": sorted(edges, key=lambda edge: edge["ref"]),
    }


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        metadata = json.load(file)
    found = document(metadata, sys.argv[2])
    with open(sys.argv[3], "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")
    print(f"{len(found['components'])} components")


if __name__ == "__main__":
    main()
