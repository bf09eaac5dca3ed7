"""Writes the JSON Schemas of the configuration files, for editors and for the chart's values.

    python3 config/schema/generate.py           writes them to this folder and to helm/tickfleet/values.schema.json
    python3 config/schema/generate.py --check   exits with 1 if a file is out of date

A schema has the fields of a file with type, bounds, default and description. docs/reference/ is generated from the
schemas. Only `tickfleet config check` validates a configuration completely, including references, relations and
templates. tests/packaging/schemas.py compares the fields with the fields that the binary reads. settings.py and
files.py define the fields. config/tickfleet.yaml has the defaults of the settings. Requires PyYAML.
"""

import json
import os
import sys

from files import FILES
from settings import SETTINGS

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CHART = "helm/tickfleet/values.schema.json"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def settings():
    """Returns the schema of tickfleet.yaml."""
    import yaml

    defaults, sections = yaml.safe_load(read("config/tickfleet.yaml")), {}
    for section, (text, known) in SETTINGS.items():
        properties = {name: schema | {"default": defaults[section][name]} for name, schema in known.items()}
        sections[section] = {"type": ["object", "null"], "description": text, "properties": properties, "additionalProperties": False}
    return {"type": "object", "description": "The settings of a fleet.", "properties": sections, "additionalProperties": False}


def schemas():
    """Returns a dict of the schemas by the name of their configuration file."""
    found = {"tickfleet": settings(), **FILES}
    head = {"$schema": "http://json-schema.org/draft-07/schema#"}
    return {name: head | {"title": f"Tickfleet: {name}.yaml"} | schema for name, schema in found.items()}


def written():
    """Returns a dict with the text of every generated file, by the file's path from the root."""
    texts = {f"config/schema/{name}.json": json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()}
    chart = json.loads(read(CHART))
    # This schema allows all settings. The chart's templates reject settings that other chart values set, and the error
    # names those values.
    chart["properties"]["config"]["properties"]["settings"] = settings()
    return texts | {CHART: json.dumps(chart, indent=2, ensure_ascii=False) + "\n"}


def main():
    try:
        texts = written()
    except ModuleNotFoundError as missing:
        sys.exit(f"{missing}; PyYAML is Debian's package python3-yaml")
    differing = [path for path, text in texts.items() if not os.path.exists(os.path.join(ROOT, path)) or read(path) != text]
    if sys.argv[1:] == ["--check"]:
        sys.exit(f"not as config/schema/generate.py makes them: {', '.join(differing)}" if differing else None)
    for path in differing:
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
            file.write(texts[path])
    print(f"{len(differing)} files written")


if __name__ == "__main__":
    main()
