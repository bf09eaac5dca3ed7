"""Writes the JSON Schemas of the configuration files, for editors and for the chart's values.

    python3 config/schema/generate.py           writes them beside this file, and into helm/tickfleet/values.schema.json
    python3 config/schema/generate.py --check   exits with 1 if what is there differs

`tickfleet config check` decides what a configuration may say, and says more: names that must be known, relations, templates.
A schema says which fields there are, of which type, within which bounds. tests/packaging/schemas.py holds its fields against
those that the binary reads. Defaults and descriptions of settings are those of config/tickfleet.yaml. Needs PyYAML.
"""

import json
import os
import re
import sys

from files import FILES
from words import DURATION, SIZE, SOME_TEXT, U32, WORDS, YES_OR_NO, items, number, word

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CHART = "helm/tickfleet/values.schema.json"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


SETTINGS = {
    "redis": {"url": SOME_TEXT, "tls_ca": {"type": "string"}, "namespace": SOME_TEXT, "shards": number(1, 16_384), "pool_size": number(1, 1_000)},
    "caps": {
        "tick": DURATION,
        "max_calls_per_tick": number(1),
        "max_actions_per_day": number(0, U32),
        "time_zone": SOME_TEXT,
        "on_day_cap": word("reject", "defer"),
    },
    "fairness": {"tenants": YES_OR_NO, "tool_slots_percent": number(1, 100)},
    "worker": {
        "slots": number(1, 10_000),
        "lease": DURATION,
        "drain": DURATION,
        "priorities": items(word("urgent", "high", "normal", "low"), minItems=1, uniqueItems=True),
        "tool_timeout": DURATION,
        "retry_ladder": items(DURATION, maxItems=16),
        "allow_dynamic_registration": YES_OR_NO,
        "workspaces": {"type": "string", "pattern": "^(/.*)?$"},
        "workspace_ttl": DURATION,
        "durable": word("none", "local", "replica"),
        "durable_wait": DURATION,
        "breaker_failures": number(0, 1_000),
        "breaker_rest": DURATION,
        "without_sandbox": word("refuse_start", "refuse_calls"),
    },
    "scheduler": {"batch": number(1), "tick_poll": DURATION, "collect_every": DURATION, "reap_every": DURATION},
    "retention": {
        "records": DURATION,
        "dedupe_for": DURATION,
        "replies": DURATION,
        "audit": DURATION,
        "audit_bytes_max": SIZE,
        "dead": DURATION,
    },
    "queues": {
        "turns_max": number(1),
        "turns_bytes_max": SIZE,
        "tenant_turns_max": number(1),
        "tenant_bytes_max": SIZE,
        "tenant_ready_max": number(1),
        "inbox_unread_max": number(1),
        "inboxes_max": number(1),
    },
    "audit": {"log_tool_calls": YES_OR_NO, "redact_keys": WORDS, "result_chars": number(0), "admissions": YES_OR_NO, "premises": YES_OR_NO},
    "seal": {
        "key": {"type": "string", "pattern": "^(env:.+|file:/.+)?$"},
        "key_id": SOME_TEXT,
        "every": DURATION,
        "anchor": {"type": "string", "pattern": "^(log|stream(:.+)?|file:/.+)?$"},
        "anchor_redis": {"type": "string", "pattern": "^(env:.+|file:/.+)?$"},
    },
    "loops": {
        "tell_after": number(0, 1_000),
        "refuse_after": number(1),
        "refuse_for": DURATION,
        "forget_after": DURATION,
        "except": WORDS,
    },
    "permission": {"strict_capabilities": YES_OR_NO, "disabled_tools": WORDS, "trial_tools": YES_OR_NO, "samples": YES_OR_NO},
    "http": {"address": SOME_TEXT},
    "log": {"format": word("pretty", "json"), "level": SOME_TEXT},
    "tracing": {
        "otlp_endpoint": {"type": "string", "pattern": "^(https?://.*)?$"},
        "sample_ratio": {"type": "number", "minimum": 0, "maximum": 1},
        "service_name": SOME_TEXT,
        "gen_ai": YES_OR_NO,
        "gen_ai_content": YES_OR_NO,
    },
}


def comments():
    """What config/tickfleet.yaml says above a setting: (section, field) → words."""
    said, section, lines = {}, None, []
    for line in read("config/tickfleet.yaml").splitlines():
        comment, key = re.match(r" *# ?(.*)", line), re.match(r"( *)([a-z_]+):", line)
        if comment:
            lines.append(comment[1].strip())
            continue
        if key and not key[1]:
            section = key[2]
        if key:
            said[section, key[2] if key[1] else None] = " ".join(lines)
        lines = []
    return said


def settings():
    """The schema of tickfleet.yaml."""
    import yaml

    said, defaults, sections = comments(), yaml.safe_load(read("config/tickfleet.yaml")), {}
    for section, known in SETTINGS.items():
        described = {
            name: schema | {"description": said[section, name], "default": defaults[section][name]}
            for name, schema in known.items()
        }
        sections[section] = {"type": ["object", "null"], "properties": described, "additionalProperties": False}
        if said.get((section, None)):
            sections[section]["description"] = said[section, None]
    return {"type": "object", "properties": sections, "additionalProperties": False}


def schemas():
    """Name of a file of the configuration → its schema."""
    found = {"tickfleet": settings(), **FILES}
    head = {"$schema": "http://json-schema.org/draft-07/schema#"}
    return {name: head | {"title": f"Tickfleet: {name}.yaml"} | schema for name, schema in found.items()}


def written():
    """Path from the root → text of everything that is made here."""
    texts = {f"config/schema/{name}.json": json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()}
    chart = json.loads(read(CHART))
    # Settings that have their place elsewhere in the values are refused by the templates, which say where.
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
