"""The dialects, and tool definitions for a dialect, made from the shared form."""

from __future__ import annotations

from typing import Any, Literal, get_args

Dialect = Literal[
    "raw", "openai_chat", "openai_responses", "anthropic", "mcp", "gemini", "mcp_2026_07_28", "text"
]
"""The dialects of turns and replies."""

Format = Literal[Dialect, "openai"]
"""Format of tool definitions: a dialect, or `openai` for `openai_chat`."""

DIALECTS: tuple[str, ...] = get_args(Dialect)


def defined(dialect: str, shared: dict[str, Any]) -> Any:
    """Returns the tools for a model request: a list; for ``text`` a string."""
    if dialect == "text":
        return shared["text"]
    tools = [_defined(dialect, tool) for tool in shared["tools"]]
    return [{"functionDeclarations": tools}] if dialect == "gemini" and tools else tools


def _defined(dialect: str, tool: dict[str, Any]) -> dict[str, Any]:
    names = tool.get("wire_names", {})
    described = {"description": tool["description"]}
    schema, output, effect = tool["input_schema"], tool.get("output_schema"), tool["effect"]
    if dialect == "gemini":
        return {"name": names.get("gemini", tool["name"]), **described, "parametersJsonSchema": schema}
    if dialect.startswith("mcp"):
        hints = {"readOnlyHint": effect == "read", "idempotentHint": effect != "once"}
        shown: dict[str, Any] = {"name": names.get("mcp", tool["name"]), "title": tool["display_name"], **described}
        shown |= {"inputSchema": schema, "annotations": hints}
        # Older revisions of MCP accept only objects as results.
        takes_any = dialect != "mcp"
        if isinstance(output, dict) and (takes_any or output.get("type") == "object"):
            shown["outputSchema"] = output
        return shown
    if dialect == "raw":
        return {key: value for key, value in tool.items() if key != "wire_names"}
    name = names.get("openai", tool["name"])
    if dialect == "anthropic":
        return {"name": name, **described, "input_schema": schema}
    function = {"name": name, **described, "parameters": schema}
    if dialect == "openai_chat":
        return {"type": "function", "function": function}
    return {**function, "strict": False, "type": "function"}
