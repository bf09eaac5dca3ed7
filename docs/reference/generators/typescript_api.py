"""Generates typescript-api.md from the doc comments in the package's source."""

import os
import re

from text import escaped, table

SOURCE = "typescript/src"


def read(root, path):
    with open(os.path.join(root, SOURCE, path), encoding="utf-8") as file:
        return file.read()


def page(root):
    page = """# TypeScript API

The package `tickfleet`: a client for services that submit turns, over Redis or a gateway, and tools. [Call from
TypeScript](../build/typescript.md) and [Write a tool in TypeScript](../build/tools-typescript.md) are guides.

```ts
import { Fleet } from "tickfleet";

const fleet = new Fleet({ url: "redis://127.0.0.1:6379", tenant: "acme" });
const reply = await fleet.run({ agent: "support", toolCalls: message.tool_calls });
messages.push(...reply.messages);
```
"""
    classes, types, errors = [], [], []
    for path, name in exported(root):
        text = read(root, path)
        found = declaration(text, name)
        if path == "errors.ts":
            errors.append(found)
        elif found["kind"] in ("class", "function"):
            classes.append((name, found))
        else:
            types.append((name, found))
    order = ["Fleet", "Submitted", "SubmittedTask", "Replies"]
    classes.sort(key=lambda one: order.index(one[0]) if one[0] in order else len(order))
    for title, found in (("Classes and functions", classes), ("Types", types)):
        page += f"\n## {title}\n"
        for name, one in found:
            page += section(name, one)
    rows = [[f"`{one['name']}`", f"`{one['base']}`" if one["base"] else "", one["doc"].replace("\n", " ").replace("|", "\\|")] for one in errors if one["kind"] == "class"]
    page += "\n## Errors\n\n" + table(["Class", "Base", "Meaning"], rows)
    page += "\n## tickfleet/tools\n"
    for path, name in sorted(exported(root, "tools/index.ts"), key=lambda one: (one[1] != "tool", one[1] != "ToolOptions", one[0] != "tools/tool.ts")):
        page += section(name, declaration(read(root, path), name))
    for title, path in (("testing", "testing.ts"), ("ai-sdk", "adapters/ai-sdk.ts")):
        page += f"\n## tickfleet/{title}\n"
        text = read(root, path)
        for name in re.findall(r"^export (?:async )?(?:class|function|interface|type) (\w+)", text, re.MULTILINE):
            page += section(name, declaration(text, name))
        for other, name in exported(root, path):
            page += section(name, declaration(read(root, other), name))
    return page


def exported(root, index="index.ts"):
    """Yields the file and name of each export of a module."""
    for names, path in re.findall(r"^export (?:type )?(\*|\{[^}]*\}) from \"\./([\w/.-]+)\.js\";", read(root, index), re.MULTILINE):
        path = os.path.join(os.path.dirname(index), path + ".ts")
        if names == "*":
            yield from ((path, name) for name in re.findall(r"^export (?:class|interface|type|function) (\w+)", read(root, path), re.MULTILINE))
        else:
            yield from ((path, name.replace("type ", "").strip()) for name in names.strip("{}").split(",") if name.strip())


def comment(text):
    """Converts a doc comment to Markdown: links, and a list of thrown errors."""
    lines = [re.sub(r"^\s*\*? ?", "", line) for line in text.strip().removeprefix("/**").removesuffix("*/").strip("\n").splitlines()]
    said = "\n".join(lines).strip()
    thrown = re.findall(r"@throws (.*?)(?=\n@|\Z)", said, re.DOTALL)
    said = re.sub(r"\n*@throws .*", "", said, flags=re.DOTALL)
    said = re.sub(r"\{@link (?:\w+\.)?(\w+)\}", r"`\1`", said).strip()
    rows = []
    for one in thrown:
        names = re.findall(r"\{(?:@link )?(\w+)\}", one)
        rest = re.sub(r"\{(?:@link )?\w+\}", "", one)
        rows.append(f"- {', '.join(f'`{name}`' for name in names)}: {' '.join(rest.split())}")
    return said + ("\n\nThrows:\n\n" + "\n".join(rows) if rows else "")


def declaration(text, name):
    """Returns an exported declaration: kind, base, doc comment, signature and body."""
    head = re.search(rf"^export (?:async )?(class|interface|type|function) {name}\b", text, re.MULTILINE)
    doc = re.search(r"/\*\*(?:(?!\*/).)*\*/\s*(?:// [^\n]*\n\s*)*\Z", text[: head.start()], re.DOTALL)
    kind, rest = head[1], text[head.start() :]
    if kind == "type":
        body = rest[: rest.index(";\n") + 1]
    elif kind == "function":
        body = rest[: re.search(r" \{\n", rest).start()]
    else:
        body = rest[: rest.index("\n}") + 2] if not re.match(r"[^\n]*\{\}", rest) else rest.split("\n")[0]
    # Type parameters can also contain `extends`.
    base = re.search(r"extends ([\w, ]+)", re.sub(r"<.*?>(?= )", "", rest.split("{")[0]))
    return {"name": name, "kind": kind, "base": base[1].strip() if base else "", "doc": comment(doc[0]) if doc else "", "text": body.removeprefix("export ")}


def section(name, one):
    page = f"\n### `{name}`\n\n{escaped(one['doc'])}\n" if one["doc"] else f"\n### `{name}`\n"
    if one["kind"] in ("type", "function"):
        return page + f"\n```ts\n{one['text']}\n```\n"
    if one["base"]:
        page += f"\nExtends `{one['base']}`.\n"
    found = list(members(one["text"]))
    if one["kind"] == "interface":
        rows = []
        for head, doc in found:
            field, _, kind = head.partition(":")
            rows.append([f"`{field.strip().removeprefix('readonly ')}`", f"`{kind.strip()}`".replace("|", "\\|"), escaped(doc).replace("\n", " ").replace("|", "\\|")])
        return page + ("\n" + table(["Field", "Type", "Description"], rows) if rows else "")
    for head, doc in found:
        label = re.search(r"(?:get |async )?([\w]+)\s*[(<:]", head)[1]
        title = f"new {name}" if label == "constructor" else f"{name}.{label}"
        page += f"\n#### `{title}`\n\n```ts\n{head}\n```\n" + (f"\n{escaped(doc)}\n" if doc else "")
    return page


def members(text):
    """Yields (signature, doc comment) of the public members of a class or interface, which are indented by two."""
    pattern = r"((?:^  /\*\*(?:(?!\*/).)*\*/\n)?)(?:^  //[^\n]*\n)*^  (?! |//|/\*|\*|\}|private|#|protected|static #)([^\n]*?(?:\n   [^\n]*)*?)(?: \{\n|;\n|,\n)"
    for doc, head in re.findall(pattern, text, re.MULTILINE | re.DOTALL):
        if "@internal" in doc:
            continue
        head = " ".join(head.split()).removeprefix("async ").removeprefix("override ")
        if re.match(r"(readonly )?[\w\[\]]+\??\s*[:(<]|get |\[", head):
            yield head, comment(doc) if doc else ""
