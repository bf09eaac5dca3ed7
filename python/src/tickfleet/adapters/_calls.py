"""What the adapters share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tickfleet.client import AsyncFleet, Reply, TurnFields


@dataclass(frozen=True)
class Definition:
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: dict[str, Any]


def call_of(name: str, arguments: str, id: str | None) -> dict[str, Any]:
    """A call as OpenAI Chat has it."""
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({} if id is None else {"id": id})


async def run(
    fleet: AsyncFleet, agent: str, calls: Sequence[Mapping[str, Any]], fields: TurnFields, tenant: str | None
) -> Reply:
    """Has calls of one model response carried out as one turn."""
    own: TurnFields = {**fields, "tool_calls": calls}
    return await fleet.run(agent, tenant=tenant, **own)


def told(reply: Reply, at: int = 0) -> str:
    """What the model is told of a call."""
    return str(reply.messages[at]["content"])


async def definitions(fleet: AsyncFleet, agent: str, tenant: str | None) -> list[Definition]:
    """The tools that the agent may call."""
    found = [tool["function"] for tool in await fleet.tools(agent, format="openai", tenant=tenant)]
    return [Definition(tool["name"], tool.get("description", ""), tool["parameters"]) for tool in found]
