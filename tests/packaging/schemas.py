"""Checks the JSON Schemas of the configuration against the binary that reads it, and against valid configurations.

    python3 schemas.py CACHE BINARY

CACHE is a folder for the Python libraries (see ../helm/toolbox.py). The binary reads configurations with an unknown
field in every mapping, and lists the fields that it expects there. The schema must have the same fields. If something
differs, exits with 1 and the differences.
"""

import copy
import os
import re
import subprocess
import sys
import tempfile

from compose import ROOT  # The import adds the folder of the other checks to the path.
from toolbox import Missing, Toolbox

UNKNOWN = "zzz"
# Some fields need or exclude other fields, so each variant sets other fields. `None` leaves a field out.
VARIANTS = ({}, {"effect": "once"}, {"from_environment": None}, dict.fromkeys(("max", "concurrent", "tokens", "money")))
# Some fields exclude others, so each variant leaves some out.
EXCLUDED = (set(), {"from_environment"}, {"concurrent", "sum", "tokens", "money"}, {"max", "concurrent", "sum", "money"})
# The binary reads this field only for pinned tools.
UNREACHED = {"servers.name.effect_window"}
NUMBER_MAX = 2**63 - 1
FOLDERS = ("config", "docs/example-tools/conf", "docs/own-fleet/conf", "tests/conformance/conf")


def sample(schema, fixed, path, known):
    """Returns a document that fits the schema, except for an unknown field in each mapping. Records the fields of each
    mapping in `known`, by path."""
    if "anyOf" in schema:
        schema = next((one for one in schema["anyOf"] if mapping_of(one)), schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        known_fields, any_field = schema.get("properties"), schema.get("additionalProperties")
        if known_fields is None:
            return {"name": sample(any_field, fixed, f"{path}.name", known)} if isinstance(any_field, dict) else {"type": "object"}
        known[path] = set(known_fields)
        found = {name: sample(one, fixed, f"{path}.{name}", known) for name, one in known_fields.items()}
        found |= {name: value for name, value in fixed.items() if name in known_fields} | {UNKNOWN: 1}
        return {name: value for name, value in found.items() if value is not None}
    if kind == "array":
        return [sample(schema["items"], fixed, f"{path}[0]", known)]
    return {"string": "1s", "integer": schema.get("minimum", 1), "number": 1, "boolean": True}.get(kind, "text")


def mapping_of(schema):
    return schema.get("type") == "object" or schema.get("type") == "array" and mapping_of(schema["items"])


def problems_of(binary, name, document):
    """Returns the fields that the binary expects, by their path."""
    pattern = rf"{name}\.yaml:\d+:\d+: (\S*?)\.?{UNKNOWN}: found the unknown field `{UNKNOWN}`; expected one of (.*?)$"
    lines = re.findall(pattern, checked(binary, name, document), re.MULTILINE)
    return {place: set(re.sub(r" \(did you mean.*", "", fields).split(", ")) for place, fields in lines}


def fields(binary, schemas):
    """Returns the mappings for which schema and binary expect different fields, and the number of mappings."""
    wrong, compared = [], 0
    for name, schema in schemas.items():
        known, heard = {}, {}
        for fixed in VARIANTS:
            document = sample(schema, fixed, "", known)
            for place, theirs in problems_of(binary, name, document).items():
                heard[place] = heard.get(place, set()) | theirs
        for place, ours in known.items():
            place = place.lstrip(".")
            theirs = heard.get(place)
            if theirs is None:
                wrong.append(f"{name}.yaml: nothing was heard of the mapping {place or 'at the top'}")
            elif theirs != ours:
                wrong.append(f"{name}.yaml: {place}: only the binary knows {sorted(theirs - ours)}, only the schema {sorted(ours - theirs)}")
            compared += 1
    return wrong, compared


def outside(schema, without, path, bounds):
    """Returns a document whose numbers, durations and sizes are out of bounds, without some fields. Records the bounds in
    `bounds`, by path."""
    if "anyOf" in schema:
        schema = next((one for one in schema["anyOf"] if mapping_of(one)), None)
        if schema is None:
            return None
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "integer":
        bounds[path] = (schema["minimum"], schema.get("maximum"))
        return -1 if schema["minimum"] >= 0 else -(10**12)
    if "x-minimum" in schema:
        bounds[path] = (schema["x-minimum"], schema["x-maximum"])
        return "0ms" if "ms" in schema["pattern"] else "1B"
    if kind == "object" and "properties" in schema:
        of = {name: one for name, one in schema["properties"].items() if name not in without}
        found = {name: outside(one, without, f"{path}.{name}".lstrip("."), bounds) for name, one in of.items()}
        return {name: value for name, value in found.items() if value is not None}
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return {"name": outside(schema["additionalProperties"], without, f"{path}.name", bounds)}
    if kind == "array":
        return [outside(schema["items"], without, f"{path}[0]", bounds)]
    return sample(schema, {}, path, {})


def bounded(binary, schemas):
    """Returns fields whose bounds differ from the bounds in the binary, and the number of compared fields."""
    wrong, compared = [], 0
    for name, schema in schemas.items():
        ours, printed = {}, ""
        for without in EXCLUDED:
            printed += checked(binary, name, outside(schema, without, "", ours))
        pattern = rf"{name}\.yaml:\d+:\d+: (\S+): found .*?; expected a (?:duration|size|whole number) from (\S+) to ([^\s,]+)"
        theirs = {place: (least, most) for place, least, most in re.findall(pattern, printed)}
        for place, (least, most) in ours.items():
            compared += 1
            if place not in UNREACHED and theirs.get(place) != (str(least), str(NUMBER_MAX if most is None else most)):
                wrong.append(f"{name}.yaml: {place}: the schema has the bounds {least} and {most}, the binary {theirs.get(place)}")
    return wrong, compared


def checked(binary, name, document):
    """Returns what the binary prints about a configuration with one file."""
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, f"{name}.yaml"), "w", encoding="utf-8") as file:
            yaml.safe_dump(document, file)
        done = subprocess.run([binary, "config", "check", "--config", folder], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def good(schemas):
    """Returns valid configurations that a schema rejects, and how many there are."""
    import jsonschema
    import yaml

    wrong, count = [], 0
    for folder in FOLDERS:
        for name, schema in schemas.items():
            path = os.path.join(folder, f"{name}.yaml")
            if not os.path.exists(os.path.join(ROOT, path)):
                continue
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                document = yaml.safe_load(file)
            count += 1
            validator = jsonschema.Draft7Validator(schema)
            wrong += [f"{path}: {'.'.join(map(str, error.path))}: {error.message[:200]}" for error in validator.iter_errors(document)]
            spoilt = copy.deepcopy(document) | {UNKNOWN: 1}
            if validator.is_valid(spoilt):
                wrong.append(f"{path}: an unknown field passes")
    for name, document in shown(schemas):
        count += 1
        errors = jsonschema.Draft7Validator(schemas[name]).iter_errors(document)
        wrong += [f"in the documentation, {name}.yaml: {'.'.join(map(str, error.path))}: {error.message[:200]}" for error in errors]
    return wrong, count


def shown(schemas):
    """Yields the name and content of YAML blocks of the documentation that are complete files: they have all required
    fields of a file, and no unknown fields."""
    import yaml

    tops = {name: (set(schema["properties"]), set(schema.get("required", []))) for name, schema in schemas.items()}
    tops.pop("tickfleet")
    pages = [page for folder in ("", "reference") for page in sorted(os.path.join(folder, name) for name in os.listdir(os.path.join(ROOT, "docs", folder)))]
    for page in pages:
        if not page.endswith(".md"):
            continue
        with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as file:
            blocks = re.findall(r"^```yaml\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
        for block in blocks:
            try:
                document = yaml.safe_load(block)
            except yaml.YAMLError:
                continue
            for name, (known, required) in tops.items():
                # Dots mark an excerpt, which need not be valid.
                whole = isinstance(document, dict) and document and set(document) <= known and required <= set(document)
                if whole and "…" not in block and "..." not in block:
                    yield name, document


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        Toolbox(sys.argv[1])
    except Missing as missing:
        sys.exit(str(missing))
    sys.path.insert(0, os.path.join(ROOT, "config/schema"))
    import generate

    schemas = generate.schemas()
    stale = [path for path, text in generate.written().items() if generate.read(path) != text]
    wrong = [f"{path} is not as config/schema/generate.py makes it" for path in stale]
    differing, compared = fields(os.path.abspath(sys.argv[2]), schemas)
    unbounded, compared_bounds = bounded(os.path.abspath(sys.argv[2]), schemas)
    refused, count = good(schemas)
    wrong += differing + unbounded + refused
    if wrong:
        sys.exit("\n".join([*wrong, "Fields are in config/schema/settings.py and files.py: change them there, and run generate.py."]))
    print(f"schemas: {len(schemas)} files, {compared} mappings have the fields that the binary reads, {compared_bounds} fields its bounds, {count} good configurations pass")


if __name__ == "__main__":
    main()
