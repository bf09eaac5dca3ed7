"""Writes the list of what is in the image, as CycloneDX 1.5 JSON.

    python3 sbom.py METADATA ROOTFS OUTPUT

METADATA is what `cargo metadata --format-version 1` printed for the image's platform, ROOTFS the folder that image/rootfs
laid out. Crates are those that the binary is linked with: what its normal dependencies reach, no build scripts and no
tests. Python's standard library only.
"""

import datetime
import hashlib
import json
import os
import sys

BINARY = "usr/bin/tickfleet"
PACKAGE = "tickfleet"


def linked(metadata):
    """Ids of the crates that the binary is linked with, and of each the ids that it names itself."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    first = next(package["id"] for package in metadata["packages"] if package["name"] == PACKAGE)
    reached, open_ids = {}, [first]
    while open_ids:
        crate = open_ids.pop()
        if crate in reached:
            continue
        # `kind` is null for a normal dependency; build and dev ones do not end up in the binary.
        normal = [dep["pkg"] for dep in nodes[crate]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        reached[crate] = sorted(normal)
        open_ids += normal
    return first, reached


def compiled_only(package):
    """Whether the crate is a procedural macro: it runs in the compiler, and is not in the binary."""
    return any("proc-macro" in target["kind"] for target in package["targets"])


def without_macros(metadata, first, reached):
    """`reached` without procedural macros and without what only they need."""
    packages = {package["id"]: package for package in metadata["packages"]}
    kept, open_ids = {}, [first]
    while open_ids:
        crate = open_ids.pop()
        if crate not in kept:
            kept[crate] = [dep for dep in reached[crate] if not compiled_only(packages[dep])]
            open_ids += kept[crate]
    return kept, packages


def crate_component(package):
    """One crate as a component."""
    url = f"pkg:cargo/{package['name']}@{package['version']}"
    component = {"type": "library", "bom-ref": url, "name": package["name"], "version": package["version"], "purl": url}
    if package.get("license"):
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return component


def debian_components(root):
    """The packages whose status image/rootfs laid down."""
    folder = os.path.join(root, "var/lib/dpkg/status.d")
    for name in sorted(os.listdir(folder)):
        fields = {}
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            for line in file:
                key, colon, value = line.partition(": ")
                if colon and not line.startswith(" "):
                    fields[key] = value.strip()
        url = f"pkg:deb/debian/{fields['Package']}@{fields['Version']}?arch={fields['Architecture']}"
        yield {
            "type": "library",
            "bom-ref": url,
            "name": fields["Package"],
            "version": fields["Version"],
            "purl": url,
        }


def document(metadata, root):
    """The whole list."""
    first, reached = linked(metadata)
    kept, packages = without_macros(metadata, first, reached)
    crates = {crate: crate_component(packages[crate]) for crate in kept}
    with open(os.path.join(root, BINARY), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    main = {**crates.pop(first), "type": "application", "hashes": [{"alg": "SHA-256", "content": digest}]}
    debian = list(debian_components(root))
    refs = {crate: component["bom-ref"] for crate, component in [(first, main), *crates.items()]}
    edges = [{"ref": refs[crate], "dependsOn": sorted({refs[dep] for dep in kept[crate]})} for crate in kept]
    edges[0]["dependsOn"] += [component["bom-ref"] for component in debian]
    stamp = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.datetime.now(datetime.timezone.utc)
    when = datetime.datetime.fromtimestamp(int(stamp), datetime.timezone.utc) if stamp else now
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": main},
        "components": sorted([*crates.values(), *debian], key=lambda component: component["purl"]),
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
