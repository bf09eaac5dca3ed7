"""Generates limits-and-defaults.md from the constants in shared/model/src/limits.rs and their comments."""

import ast
import operator
import os
import re

from text import cell, sentence, table

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.LShift: operator.lshift}
SOURCE = "shared/model/src/limits.rs"
# For each section, the pattern for the names of its constants. A constant belongs to the first section that matches.
SECTIONS = {
    "MCP servers": r"^MCP_",
    "Knowledge and memory": r"DOCUMENT|KNOWLEDGE|EMBEDDING|PASSAGE|QUERY|MEMOR",
    "Workers and scripts": r"SCRIPT|BATCH|SETTLE|UNPACK|LEASE_MS|REPAIR|BEATS|BLOCK_|CRASHES|UNREAD_OFFERS|DRAINS|PAUSES|PER_LEASE",
    "Ids and names": r"NAME|ID_BYTES|TRACESTATE|LEASE_BYTES",
    "Messages between agents": r"MESSAGE",
    "Conversations": r"^SESSION",
    "Approvals and rules": r"APPROV|RULE|FACTS",
    "Read cache and tool lists": r"CACHED|TOOL_LISTS",
    "Tasks": r"TASK|DELEGATION|INNER",
    "Limits, usage and audit": r"LIMIT|USAGE|STATS|ANSWER|AUDIT|LOG|HANDLED|DEAD_BYTES",
    "Turns and calls": r"",
}
ORDER = (
    "Ids and names",
    "Turns and calls",
    "Tasks",
    "Approvals and rules",
    "Limits, usage and audit",
    "Read cache and tool lists",
    "Messages between agents",
    "Conversations",
    "Knowledge and memory",
    "MCP servers",
    "Workers and scripts",
)


def page(root):
    with open(os.path.join(root, SOURCE), encoding="utf-8") as file:
        source = file.read()
    constants = re.findall(r"((?:^///[^\n]*\n)+)pub const (\w+): \w+ =\s*([^;]+);", source, re.MULTILINE)
    known, found = values({name: expression for _, name, expression in constants}), {name: [] for name in SECTIONS}
    for comment, name, _ in constants:
        text = " ".join(line.removeprefix("///").strip() for line in comment.strip().splitlines())
        text = re.sub(r"\[`(\w+)`\]", r"`\1`", text)
        section = next(title for title, pattern in SECTIONS.items() if re.search(pattern, name))
        found[section].append([f"`{name}`", shown(name, known[name]), cell(sentence(text))])
    page = """# Limits and defaults

Fixed bounds of a fleet. No setting changes them; [settings](settings.md) and [configuration files](configuration-files.md) have the
bounds that you can configure. A message beyond a bound is rejected with the name and value of the bound.

"""
    for title in ORDER:
        page += f"## {title}\n\n" + table(["Constant", "Value", "Meaning"], found[title]) + "\n"
    return page


def values(expressions):
    """Evaluates constants, which consist of numbers, other constants and arithmetic."""
    known = {}

    def value(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in known:
                known[node.id] = value(ast.parse(re.sub(r"\bas \w+", "", expressions[node.id]).strip(), mode="eval").body)
            return known[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{SOURCE}: cannot evaluate {ast.unparse(node)}")

    return {name: value(ast.Name(name)) for name in expressions}


def shown(name, value):
    if "BYTES" in name:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value % (size // 4) == 0:
                return f"{value / size:g} {unit}"
        return f"{value:,} bytes"
    if re.search(r"_MS(_|$)", name):
        for unit, size in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1_000)):
            if value >= 2 * size and value % size == 0:
                return f"{value // size} {unit}"
        return f"{value:,} ms"
    return f"{value:,}"
