"""Markdown: cells, tables, anchors."""

import re


def escaped(text):
    """Escapes angle brackets outside of code, because Markdown treats them as HTML."""
    parts = text.split("`")
    return "`".join(part.replace("<", "\\<") if at % 2 == 0 else part for at, part in enumerate(parts))


def cell(text):
    return escaped(" ".join(str(text).split())).replace("|", "\\|")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sentence(text):
    text = " ".join(text.split())
    return text if not text or text[-1] in ".:!?" else text + "."


def first_sentence(text):
    """Returns the first sentence of a text."""
    return re.split(r"(?<=[a-z0-9)`\"'][.])\s+(?=[A-Z`*\[(])", " ".join(text.split()), maxsplit=1)[0]
