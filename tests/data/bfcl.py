"""Fetches the data of the Berkeley Function Calling Leaderboard. Writes it as tools, turns and conversations.

    python3 bfcl.py OUTDIR

The data comes from the PyPI package `bfcl-eval` (Apache-2.0), pinned by version and SHA-256. It is kept below
OUTDIR, which must not be committed. A second run finds the output of the first and returns at once.

OUTDIR then has these files, with one JSON object per line:

  tools.jsonl        {tool, name, description, input_schema, functions}
                     `tool` is unique, `name` is the name in the leaderboard, `functions` counts its occurrences
  single_turn.jsonl  {entry_id, category, tools: [tool], calls: [{tool, arguments}]}
  multi_turn.jsonl   {entry_id, category, classes: [class], turns: [[{tool, arguments}]]}
  manifest.json      the converted version and the converter; written last, so if it exists, the output is complete

Python's standard library only, 3.9 and later.
"""

import ast
import collections
import hashlib
import json
import os
import re
import sys
import zipfile

import pypi

PACKAGE = "bfcl-eval"
VERSION = "2026.3.23"
WHEEL = "bfcl_eval-2026.3.23-py3-none-any.whl"
SHA256 = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
DATA = "bfcl_eval/data/"
ANSWERS = DATA + "possible_answer/"
CLASS_DOCS = DATA + "multi_turn_func_doc/"

NOT_CALLS = {"format_sensitivity", "memory", "web_search"}

CLASSES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}

# `None` means that any value fits, so the schema gets no `type`.
TYPES = {
    "any": None,
    "": None,
    "dict": "object",
    "HashMap": "object",
    "string": "string",
    "String": "string",
    "char": "string",
    "integer": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "boolean": "boolean",
    "Boolean": "boolean",
    "array": "array",
    "tuple": "array",
    "Array": "array",
    "ArrayList": "array",
}
KEPT_KEYWORDS = {"description", "required", "enum", "default", "format", "maximum", "minItems", "maxItems"}
DROPPED_KEYWORDS = {"optional"}

TOOL_NAME_BYTES_MAX = 64
DIGEST_DIGITS = 8

OUTPUTS = ("tools.jsonl", "single_turn.jsonl", "multi_turn.jsonl")

ABSENT = object()


def read_lines(wheel, path):
    """Returns the JSON objects of one file in the wheel. Each line of the file has one object."""
    text = wheel.read(path).decode("utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def normalise(schema, where):
    """Returns a leaderboard schema as JSON Schema, with type names translated. Unknown keywords are an error."""
    result = {}
    for keyword, value in schema.items():
        if keyword == "type":
            if value not in TYPES:
                raise pypi.BadData(f"{where}: unknown type {value!r}")
            if TYPES[value] is not None:
                result["type"] = TYPES[value]
        elif keyword == "properties":
            result["properties"] = {name: normalise(sub, f"{where}.{name}") for name, sub in value.items()}
        elif keyword == "items":
            result["items"] = normalise(value, f"{where}[]")
        elif keyword in KEPT_KEYWORDS:
            result[keyword] = value
        elif keyword not in DROPPED_KEYWORDS:
            raise pypi.BadData(f"{where}: unknown keyword {keyword!r}")
    return result


def canonical(document):
    """Returns a text that identifies the document. It does not depend on the order of the keys."""
    keys = ("name", "description", "parameters")
    return json.dumps({key: document[key] for key in keys}, sort_keys=True, ensure_ascii=False)


class Tools:
    """The function documents of the leaderboard, each under a unique name.

    Each entry has its own tool set, and two entries can use the same name for different tools. But a fleet has one tool
    per name. So a document keeps its name only if the name is unique. Otherwise, `-` and the first digits of the
    document's digest follow the name, which is cut to fit. The result is the same in every run, whatever the order of
    the files. No name in the leaderboard contains `-`.
    """

    def __init__(self, documents):
        self.documents = {}
        self.uses = collections.Counter()
        for document in documents:
            key = canonical(document)
            self.documents.setdefault(key, document)
            self.uses[key] += 1
        per_name = collections.Counter(document["name"] for document in self.documents.values())
        self.names = {key: self.unique(key, per_name) for key in self.documents}
        if len(set(self.names.values())) != len(self.names):
            raise pypi.BadData("two function documents have the same digest")

    def unique(self, key, per_name):
        name = self.documents[key]["name"]
        if "-" in name or not name.isascii():
            raise pypi.BadData(f"the name {name!r} has a character that tool names here must not have")
        if per_name[name] == 1 and len(name) <= TOOL_NAME_BYTES_MAX:
            return name
        digest = hashlib.sha256(key.encode("utf-8")).hexdigest()[:DIGEST_DIGITS]
        return f"{name[: TOOL_NAME_BYTES_MAX - DIGEST_DIGITS - 1]}-{digest}"

    def name_of(self, document):
        return self.names[canonical(document)]

    def rows(self):
        for key, tool in sorted(self.names.items(), key=lambda item: item[1]):
            document = self.documents[key]
            yield {
                "tool": tool,
                "name": document["name"],
                "description": document["description"],
                "input_schema": normalise(document["parameters"], document["name"]),
                "functions": self.uses[key],
            }


def expected(acceptable):
    """Returns the first of the acceptable values of one argument.

    If the first value is an empty string, the argument is optional, and the expected call omits it. If the list of
    acceptable values is empty (as in two entries), the value is an empty list. Schemas are not used here. If the
    leaderboard accepts a value that its own schema rejects, the value is kept and counted as invalid.
    """
    if not isinstance(acceptable, list):
        return acceptable  # one entry has a single value instead of a list
    if not acceptable:
        return []
    return ABSENT if acceptable[0] == "" else plain(acceptable[0])


def plain(value):
    """Converts a value in which objects, at any depth, list the acceptable values of each member."""
    if isinstance(value, dict):
        return arguments_of(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def arguments_of(answers):
    picked = {name: expected(acceptable) for name, acceptable in answers.items()}
    return {name: value for name, value in picked.items() if value is not ABSENT}


def single_call(answer, offered, entry_id):
    """Converts one expected call `{function: {parameter: [acceptable, …]}}` of a single-turn entry."""
    ((name, answers),) = answer.items()
    if name not in offered:
        raise pypi.BadData(f"{entry_id}: {name!r} is not among the entry's functions")
    return {"tool": offered[name], "arguments": arguments_of(answers)}


def python_call(text, documents, tools, where):
    """Converts one expected call of a multi-turn entry, a Python expression: `mv(source='a', destination='b')`."""
    node = ast.parse(text.strip(), mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in documents:
        raise pypi.BadData(f"{where}: {text!r} is not a call of one of the entry's functions")
    document = documents[node.func.id]
    parameters = list(document["parameters"].get("properties", {}))
    if len(node.args) > len(parameters) or any(keyword.arg is None for keyword in node.keywords):
        raise pypi.BadData(f"{where}: {text!r} has arguments that belong to no parameter")
    arguments = {name: ast.literal_eval(value) for name, value in zip(parameters, node.args)}
    arguments.update({keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords})
    return {"tool": tools.name_of(document), "arguments": arguments}


def entry_files(wheel):
    """Returns the path of each category's entries, sorted by name."""
    pattern = re.compile(re.escape(DATA) + r"BFCL_v4_(\w+)\.json")
    found = (pattern.fullmatch(path) for path in sorted(wheel.namelist()))
    return {match.group(1): match.group(0) for match in found if match and match.group(1) not in NOT_CALLS}


def answers_of(wheel, category):
    """Returns the expected calls of each entry, by ID, or an empty dict if the category has no file of expected
    calls."""
    path = f"{ANSWERS}BFCL_v4_{category}.json"
    if path not in wheel.namelist():
        return {}
    return {row["id"]: row["ground_truth"] for row in read_lines(wheel, path)}


def class_documents(wheel):
    """Returns the documents by class and function name, without the description of the function's result."""
    found = {}
    for name, stem in CLASSES.items():
        documents = read_lines(wheel, f"{CLASS_DOCS}{stem}.json")
        found[name] = {document["name"]: document for document in documents}
    return found


def convert(wheel):
    """Returns (tools, single-turn entries, multi-turn entries) as lists of rows."""
    entries = {category: read_lines(wheel, path) for category, path in entry_files(wheel).items()}
    classes = class_documents(wheel)
    documents = [document for rows in entries.values() for row in rows for document in row.get("function", [])]
    documents += [document for of_class in classes.values() for document in of_class.values()]
    tools = Tools(documents)
    single, multi = [], []
    for category, rows in entries.items():
        answers = answers_of(wheel, category)
        for row in rows:
            if category.startswith("multi_turn"):
                multi.append(conversation(row, category, answers[row["id"]], classes, tools))
            else:
                single.append(single_turn(row, category, answers.get(row["id"], []), tools))
    return list(tools.rows()), single, multi


def single_turn(row, category, answers, tools):
    offered = {document["name"]: tools.name_of(document) for document in row["function"]}
    calls = [single_call(answer, offered, row["id"]) for answer in answers]
    return {"entry_id": row["id"], "category": category, "tools": list(offered.values()), "calls": calls}


def conversation(row, category, turns, classes, tools):
    documents = {}
    for name in row["involved_classes"]:
        documents.update(classes[name])
    calls = [[python_call(text, documents, tools, row["id"]) for text in turn] for turn in turns]
    return {"entry_id": row["id"], "category": category, "classes": row["involved_classes"], "turns": calls}


def to_lines(rows):
    # The keys must stay in the leaderboard's order.
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode("utf-8")


def is_complete(outdir, manifest):
    try:
        with open(os.path.join(outdir, "manifest.json"), encoding="utf-8") as file:
            return json.load(file) == manifest and all(os.path.exists(os.path.join(outdir, name)) for name in OUTPUTS)
    except (OSError, ValueError):
        return False


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: bfcl.py OUTDIR")
    outdir = os.path.abspath(sys.argv[1])
    manifest = {"package": PACKAGE, "version": VERSION, "sha256": SHA256, "converter": pypi.sha256_of(__file__)}
    if is_complete(outdir, manifest):
        return
    os.makedirs(outdir, exist_ok=True)
    try:
        with zipfile.ZipFile(pypi.fetch(outdir, PACKAGE, VERSION, WHEEL, SHA256)) as wheel:
            outputs = convert(wheel)
    except pypi.BadData as error:
        sys.exit(f"bfcl.py: {error}")
    for name, rows in zip(OUTPUTS, outputs):
        pypi.write_whole(os.path.join(outdir, name), to_lines(rows))
    pypi.write_whole(os.path.join(outdir, "manifest.json"), (json.dumps(manifest, indent=2) + "\n").encode("utf-8"))


if __name__ == "__main__":
    main()
