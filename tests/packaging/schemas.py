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
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, f"{name}.yaml"), "w", encoding="utf-8") as file:
            yaml.safe_dump(document, file)
        done = subprocess.run([binary, "config", "check", "--config", folder], capture_output=True, text=True, check=False)
    pattern = rf"{name}\.yaml:\d+:\d+: (\S*?)\.?{UNKNOWN}: found the unknown field `{UNKNOWN}`; expected one of (.*?)$"
    lines = re.findall(pattern, done.stdout + done.stderr, re.MULTILINE)
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


def bounds(binary, sections):
    """Returns settings whose bounds differ from the bounds in the binary, and the number of compared settings."""
    import yaml

    document, ours = {}, {}
    for section, schema in sections.items():
        for name, of in schema["properties"].items():
            one, place = (of["items"], f"{section}.{name}[0]") if of.get("type") == "array" else (of, f"{section}.{name}")
            wrong = 10**12 if one.get("type") == "integer" else "0ms" if "ms" in one.get("pattern", "") else "1B"
            if one.get("type") == "integer":
                ours[place] = (one["minimum"], one.get("maximum"))
            elif "x-minimum" in one:
                ours[place] = (one["x-minimum"], one["x-maximum"])
            else:
                continue
            document.setdefault(section, {})[name] = [wrong] if place.endswith("]") else wrong
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tickfleet.yaml"), "w", encoding="utf-8") as file:
            yaml.safe_dump(document, file)
        done = subprocess.run([binary, "config", "check", "--config", folder], capture_output=True, text=True, check=False)
    pattern = r"tickfleet\.yaml:\d+:\d+: (\S+): found .*?; expected a (?:duration|size|whole number) from (\S+) to ([^\s,]+)"
    theirs = {place: (least, most) for place, least, most in re.findall(pattern, done.stdout + done.stderr)}
    wrong = [
        f"tickfleet.yaml: {place}: the schema has the bounds {least} and {most}, the binary {theirs.get(place)}"
        for place, (least, most) in ours.items()
        if theirs.get(place) != (str(least), str(most))
    ]
    return wrong, len(ours)


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
    outside, bounded = bounds(os.path.abspath(sys.argv[2]), schemas["tickfleet"]["properties"])
    refused, count = good(schemas)
    wrong += differing + outside + refused
    if wrong:
        sys.exit("\n".join([*wrong, "Fields are in config/schema/settings.py and files.py: change them there, and run generate.py."]))
    print(f"schemas: {len(schemas)} files, {compared} mappings have the fields that the binary reads, {bounded} settings its bounds, {count} good configurations pass")


if __name__ == "__main__":
    main()
