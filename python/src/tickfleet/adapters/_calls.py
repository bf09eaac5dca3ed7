"""Shared code of the adapters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tickfleet.client import AsyncFleet, InvalidMessage, Reply, TurnFields


@dataclass(frozen=True)
class Definition:
    """A tool definition for a model."""

    name: str
    description: str
    parameters: dict[str, Any]


def call_of(name: str, arguments: str, id: str | None) -> dict[str, Any]:
    """Returns a call in the format of OpenAI Chat."""
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({} if id is None else {"id": id})


def arguments_text(arguments: Any) -> str:
    """Returns arguments as JSON text. Members are sorted, because a history that was stored and loaded may order them
    differently, and the fleet compares the text of a repeated turn."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True)


def turn_id(framework: str, *parts: Any) -> str:
    """Returns an id that is the same for equal parts, and differs for different ones. The parts are JSON values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"{framework}-{hashlib.sha256(text.encode()).hexdigest()}"


def checked(fields: TurnFields) -> TurnFields:
    """Returns the fields that apply to every call.

    Raises:
        InvalidMessage: A ``turn_id`` is set, which all calls would share.
    """
    if "turn_id" in fields:
        raise InvalidMessage("turn_id: omit it; the adapter derives an id for the turn of each call")
    return fields


def run_named_by(run_id: str | Callable[[Any], str] | None, context: Any) -> str | None:
    """Returns the id of a run that its owner has set, if any.

    Raises:
        InvalidMessage: The id is empty or not a text.
    """
    named = run_id(context) if callable(run_id) else run_id
    if named is None and run_id is None:
        return None
    if not isinstance(named, str) or not named:
        raise InvalidMessage(f"run_id is {named!r}; expected a text that is unique to this run")
    return named


async def run(
    fleet: AsyncFleet,
    agent: str,
    calls: Sequence[Mapping[str, Any]],
    fields: TurnFields,
    tenant: str | None,
    turn_id: str,
    timeout: float | None = 300.0,
) -> Reply:
    """Runs calls of one model response as one turn."""
    own: TurnFields = {**fields, "tool_calls": calls, "turn_id": turn_id}
    return await fleet.run(agent, tenant=tenant, timeout=timeout, **own)


def told(reply: Reply, at: int = 0) -> str:
    """Returns the message to the model about a call."""
    return str(reply.messages[at]["content"])


async def definitions(fleet: AsyncFleet, agent: str, tenant: str | None) -> list[Definition]:
    """Returns the tools that the agent may call."""
    found = [tool["function"] for tool in await fleet.tools(agent, format="openai", tenant=tenant)]
    return [Definition(tool["name"], tool.get("description", ""), tool["parameters"]) for tool in found]
