"""python-api.md, from the docstrings of the package tickfleet. Reads the source; imports nothing."""

import ast
import os
import re

from text import anchor, escaped, table

SOURCE = "python/src/tickfleet"
MODULES = (
    ("Clients", "client/__init__.py", ("Fleet", "AsyncFleet", "SyncSubmitted", "Submitted", "SyncTask", "SubmittedTask", "SyncReplies", "Replies", "Reply", "Result", "PendingApproval", "CallError", "Event", "TurnFields", "TaskFields")),
    ("Types", "client/__init__.py", ("ApiKey", "Deadline", "Dialect", "Format", "Priority", "Status")),
    ("Errors", "client/__init__.py", None),
    ("Tools", "__init__.py", ("tool", "Approval", "Cache", "Reconcile", "Context", "Image", "InnerResult", "ToolError", "Effect", "Tool", "registered", "DuplicateTool")),
    ("Test a tool", "testing.py", ("call", "context")),
    ("Adapters", "adapters", (("__init__", "CallOptions"), ("openai_agents", "fleet_tools"), ("openai_agents", "FleetTools"), ("langgraph", "fleet_tools"), ("langgraph", "fleet_node"), ("pydantic_ai", "FleetToolset"))),
)


class Package:
    def __init__(self, root):
        self.root, self.trees = os.path.join(root, SOURCE), {}

    def tree(self, path):
        if path not in self.trees:
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                self.trees[path] = ast.parse(file.read())
        return self.trees[path]

    def public(self, path):
        """Returns the names in a module's __all__."""
        for node in self.tree(path).body:
            if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
                return ast.literal_eval(node.value)
        return []

    def find(self, path, name):
        """Returns the definition of a name: its node, and the docstring after an assignment."""
        body = self.tree(path).body
        for at, node in enumerate(body):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tickfleet") and any(one.name == name for one in node.names):
                return self.find(self.file(node.module), name)
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name and not overload(node):
                return node, ast.get_docstring(node) or ""
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                following = body[at + 1] if at + 1 < len(body) else None
                said = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                return node, following.value.value if said else ""
        raise LookupError(f"{path} does not define {name}")

    def file(self, module):
        path = "/".join(module.split(".")[1:])
        folder = os.path.join(self.root, path)
        return f"{path}/__init__.py".lstrip("/") if os.path.isdir(folder) else f"{path}.py"


def overload(node):
    return any(isinstance(one, ast.Name) and one.id == "overload" for one in node.decorator_list)


def page(root):
    package = Package(root)
    page = """# Python API

The package `tickfleet`: a client for services that submit turns, and tools that a fleet runs. [Install](../start/install.md#install-a-client)
it with the extra `redis` to use Redis. [Call from Python](../build/python.md) and
[Tools in Python](../build/tools-python.md) are guides.

```python
from tickfleet import Fleet

with Fleet("redis://127.0.0.1:6379", tenant="acme") as fleet:
    reply = fleet.run("support", tool_calls=message.tool_calls, turn_id=response.id)
    messages += reply.messages
```
"""
    listed = {name for _, path, names in MODULES if names and path == "client/__init__.py" for name in names}
    listed.add("shard_of")
    for title, path, names in MODULES:
        page += f"\n## {title}\n"
        if path == "adapters":
            found = [(f"tickfleet.adapters.{module}.{name}".replace("__init__.", ""), package.find(f"adapters/{module}.py", name)) for module, name in names]
        else:
            prefix = {"client/__init__.py": "tickfleet.client.", "__init__.py": "tickfleet.", "testing.py": "tickfleet.testing."}[path]
            chosen = names or [name for name in package.public(path) if name not in listed]
            found = [((prefix if name not in ("Fleet", "AsyncFleet") else "tickfleet.") + name, package.find(path, name)) for name in chosen]
        if title in ("Errors", "Types"):
            rows = [[f"`{name.split('.')[-1]}`", words(summary(doc)).replace("|", "\\|"), shown(node)] for name, (node, doc) in found]
            place = "`tickfleet` and `tickfleet.client`" if title == "Errors" else "`tickfleet.client`"
            page += f"\nAll in {place}.\n\n" + table(["Name", "Meaning", "Definition" if title == "Types" else "Base"], rows)
            continue
        for name, (node, doc) in found:
            page += f"\n### `{name}`\n\n{section(node, doc)}"
    return page


def summary(doc):
    """Returns the prose of a docstring in one line, without its lists."""
    return " ".join(re.split(r"\n\s*\n(?=\w+:\n)", doc)[0].split())


def shown(node):
    """Returns a type's definition, or an error's bases, as the text of a table cell."""
    if isinstance(node, ast.ClassDef):
        return ", ".join(f"`{ast.unparse(base)}`" for base in node.bases)
    text = ast.unparse(node.value)
    return f"`{text}`".replace("|", "\\|")


def section(node, doc):
    if not isinstance(node, ast.ClassDef):
        signature = f"```python\n{signature_of(node)}\n```\n\n" if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ""
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            signature = f"```python\n{ast.unparse(node)}\n```\n\n"
        return signature + docstring(doc)
    init = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    text = ""
    fields = attributes(node)
    if init and any(arg.arg == "url" for arg in init.args.args):
        text += f"```python\n{signature_of(init, node.name)}\n```\n\n"
    text += docstring(doc)
    if fields:
        text += "\n" + table(["Field", "Type", "Description"], fields)
    methods = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and not one.name.startswith("_") and not overload(one)]
    for one in methods:
        said = ast.get_docstring(one) or ""
        if said:
            text += f"\n#### `{node.name}.{one.name}`\n\n```python\n{signature_of(one)}\n```\n\n{docstring(said)}"
    bare = [f"`{one.name}`" for one in methods if not ast.get_docstring(one)]
    if bare:
        text += f"\nOther methods: {', '.join(bare)}.\n"
    return text


def attributes(node):
    """Returns the annotated fields of a class, with the docstrings after them."""
    rows = []
    for at, one in enumerate(node.body):
        if isinstance(one, ast.AnnAssign) and not one.target.id.startswith("_"):
            following = node.body[at + 1] if at + 1 < len(node.body) else None
            said = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            text = " ".join(words(following.value.value).split()).replace("|", "\\|") if said else ""
            rows.append([f"`{one.target.id}`", f"`{ast.unparse(one.annotation)}`".replace("|", "\\|"), text])
    return rows if any(row[2] for row in rows) else []


def signature_of(node, name=None):
    """Returns a function's signature, with one parameter per line if it is long."""
    args = ast.unparse(node.args)
    args = re.sub(r"^(self|cls)(, )?", "", args)
    decorated = any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)
    if decorated:
        return f"{node.name}: {ast.unparse(node.returns)}"
    head = ("async def " if isinstance(node, ast.AsyncFunctionDef) else "def ") + node.name if not name else name
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and not name else ""
    line = f"{head}({args}){returns}"
    if len(line) <= 110:
        return line
    return f"{head}(\n    " + ",\n    ".join(parts(args)) + f",\n){returns}"


def parts(args):
    """Splits parameters at commas outside of brackets."""
    depth, found, current = 0, [], ""
    for character in args:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append(current.strip())
            current = ""
        else:
            current += character
    return [*found, current.strip()]


def words(text):
    """Converts reStructuredText to Markdown."""
    text = re.sub(r"\bSee :meth:`(\w+)\.(\w+)`", lambda match: f"See [`{match[1]}.{match[2]}`](#{anchor(match[1] + match[2])})", text)
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda match: f"`{match[1].split('.')[-1]}`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def docstring(doc):
    """Converts a Google-style docstring: prose, then lists of arguments and errors."""
    text, in_list = "", False
    lines = words(doc).splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if re.fullmatch(r"(Args|Raises|Attributes|Returns|Yields):", line.strip()):
            text = text.rstrip() + f"\n\n{ {'Args': 'Parameters', 'Raises': 'Raises', 'Attributes': 'Attributes', 'Returns': 'Returns', 'Yields': 'Yields'}[line.strip()[:-1]]}:\n\n"
            in_list = True
        elif in_list and re.match(r" {4}[\w`*][\w`*, .]*:", line):
            name, _, said = line.strip().partition(":")
            names = ", ".join(part if part.startswith("`") else f"`{part}`" for part in name.split(", "))
            text += f"- {names}: {said.strip()}\n"
        elif in_list and line.startswith(" " * 8):
            text = text.rstrip("\n") + " " + line.strip() + "\n"
        elif line.strip() == "::":
            block = []
            at += 1
            while at < len(lines) and (not lines[at].strip() or lines[at].startswith("    ")):
                block.append(lines[at][4:])
                at += 1
            code = "\n".join(block).strip("\n")
            text += f"```python\n{code}\n```\n\n"
            continue
        else:
            in_list = in_list and not line.strip()
            text += line + "\n"
        at += 1
    fenced = re.split(r"(```.*?```)", text.strip(), flags=re.DOTALL)
    return "".join(part if part.startswith("```") else escaped(part) for part in fenced) + "\n" if text.strip() else ""
