"""Generates settings.md and configuration-files.md from the JSON Schemas in config/schema/."""

import json
import os
import sys

from text import anchor, cell, table

FILES = ("agents", "tenants", "permissions", "limits", "tools", "models", "mcp")


def schema(root, name):
    with open(os.path.join(root, f"config/schema/{name}.json"), encoding="utf-8") as file:
        return json.load(file)


def value(of):
    """Formats a value as YAML in one line."""
    if isinstance(of, bool):
        return str(of).lower()
    if isinstance(of, list):
        return "[" + ", ".join(value(one) for one in of) + "]"
    return '""' if of == "" else str(of)


def kind(of):
    """Returns the type of a field with its bounds."""
    if "anyOf" in of:
        names = [kind(part) for part in of["anyOf"]]
        return "amount" if names == ["number from 0", "text"] else " or ".join(dict.fromkeys(names))
    if "enum" in of:
        return ", ".join(f"`{word}`" for word in of["enum"])
    if of.get("pattern", "").startswith("^[0-9]+ *(ms"):
        return "duration" + bounds(of.get("x-minimum"), of.get("x-maximum"))
    if of.get("pattern", "").startswith("^[0-9]+ *(B"):
        return "size" + bounds(of.get("x-minimum"), of.get("x-maximum"))
    if of.get("type") == "array":
        return f"list of {kind(of['items'])}"
    if of.get("type") == "object":
        inner = of.get("additionalProperties")
        if "properties" in of:
            return "section"
        return f"mapping to {kind(inner)}" if isinstance(inner, dict) and inner else "mapping"
    if of.get("type") in ("integer", "number"):
        return ("integer" if of["type"] == "integer" else "number") + bounds(of.get("minimum"), of.get("maximum"))
    return {"string": "text", "boolean": "`true`, `false`"}.get(of.get("type"), "any value")


def bounds(least, most):
    def shown(bound):
        return f"{bound:,}" if isinstance(bound, int) else str(bound)

    if least is None:
        return ""
    return f" from {shown(least)}" if most is None else f" {shown(least)}–{shown(most)}"


def settings(root):
    sections = schema(root, "tickfleet")["properties"]
    page = """# Settings

The file `tickfleet.yaml` in the configuration folder holds the settings. It needs only the fields that differ from the defaults.

- The variable `TICKFLEET_<SECTION>_<FIELD>` overrides a setting: `TICKFLEET_WORKER_SLOTS=64`. An empty variable counts as unset. Separate
  the values of a list by commas.
- Durations are `250ms`, `5s`, `2m`, `1h`, `7d`. Sizes are `64KiB`, `1MiB`.
- `tickfleet config check` reports every error with file, line and field. `tickfleet config print` shows each setting with its source.

```yaml
# tickfleet.yaml
caps:
  max_calls_per_tick: 5
  time_zone: Europe/Berlin
worker:
  slots: 64
```

"""
    page += table(["Section", "Purpose"], [[f"[`{name}`](#{name})", cell(section["description"])] for name, section in sections.items()])
    for name, section in sections.items():
        rows = [
            [f"`{field}`", kind(of), f"`{value(of['default'])}`", cell(of["description"])] for field, of in section["properties"].items()
        ]
        page += f"\n## {name}\n\n{section['description']}\n\n" + table(["Field", "Type", "Default", "Description"], rows)
    return page


def files(root):
    sys.path.insert(0, os.path.join(root, "config/schema"))
    from examples import EXAMPLES

    page = """# Configuration files

The configuration folder (`--config`, `TICKFLEET_CONFIG`) can hold these files besides [`tickfleet.yaml`](settings.md).
[Configuration folder](../operate/configuration-folder.md) explains how they work together. `tickfleet config check` reports every error with file, line and field.

"""
    schemas = {name: schema(root, name) for name in FILES}
    rows = [[f"[`{name}.yaml`](#{name}yaml)", cell(of["description"])] for name, of in schemas.items()]
    rows.append(["`mcp.lock.yaml`", "Pinned tool definitions of MCP servers, written by `tickfleet mcp pin`."])
    page += table(["File", "Contents"], rows)
    seen = {}
    for name, of in schemas.items():
        page += f"\n## {name}.yaml\n\n{of['description']}\n\n```yaml\n{EXAMPLES[name].strip()}\n```\n"
        page += sections(name, "", of, seen)
    return page


def inner(of):
    """Returns the mapping with known fields inside a field, and the notation for its path."""
    if "anyOf" in of:
        for part in of["anyOf"]:
            found, suffix = inner(part)
            if found:
                return found, suffix
    if of.get("type") == "array":
        found, suffix = inner(of["items"])
        return found, "[]" + suffix
    if "properties" in of:
        return of, ""
    if isinstance(of.get("additionalProperties"), dict):
        found, suffix = inner(of["additionalProperties"])
        return found, ".<name>" + suffix
    return None, ""


def sections(file, path, of, seen):
    """Returns the table of a mapping, followed by the tables of its nested mappings."""
    page, rows, within = "", [], []
    required = of.get("required", [])
    for name, field in of["properties"].items():
        found, suffix = inner(field)
        place, text = f"{path}.{name}".lstrip(".") + suffix, cell(field["description"])
        if found:
            same = json.dumps([{key: one for key, one in found.items() if key not in ("description", "default")}], sort_keys=True)
            if same not in seen:
                seen[same] = f"{file}.yaml: {place}"
                within.append((place, found))
            text += f" See [`{seen[same].split(': ')[1]}`](#{anchor(seen[same])})."
        default = "required" if name in required else f"`{value(field['default'])}`" if "default" in field else ""
        rows.append([f"`{name}`", kind(field), default, text])
    page += "\n" + table(["Field", "Type", "Default", "Description"], rows)
    for place, found in within:
        page += f"\n### `{file}.yaml: {place}`\n" + sections(file, place, found, seen)
    return page
