"""A node of LangGraph in the place of its ``ToolNode``::

    graph.add_node("tools", fleet_node(fleet, "kelly"))

All calls of a message are one turn: they are carried out in their order, and answered together. What the model is told of the
tools is ``model.bind_tools(await fleet.tools("kelly"))``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from typing_extensions import Unpack

from tickfleet.adapters._calls import call_of, run, told
from tickfleet.client import AsyncFleet, TurnFields


def fleet_node(
    fleet: AsyncFleet,
    agent: str,
    *,
    tenant: str | None = None,
    messages_key: str = "messages",
    **fields: Unpack[TurnFields],
) -> Callable[[dict[str, Any]], Awaitable[dict[str, list[ToolMessage]]]]:
    """A node that has the calls of the last message carried out by the fleet, and answers with a message for each."""

    async def tools(state: dict[str, Any]) -> dict[str, list[ToolMessage]]:
        last = state[messages_key][-1]
        if not isinstance(last, AIMessage) or not (last.tool_calls or last.invalid_tool_calls):
            return {messages_key: []}
        asked = [(call["id"], call["name"], json.dumps(call["args"])) for call in last.tool_calls]
        # What the model wrote badly is told to it by the fleet, in words that it can act on.
        asked += [(call["id"], call["name"] or "", call["args"] or "") for call in last.invalid_tool_calls]
        calls = [call_of(name, arguments, id) for id, name, arguments in asked]
        reply = await run(fleet, agent, calls, fields, tenant)
        return {
            messages_key: [
                ToolMessage(
                    content=told(reply, at),
                    tool_call_id=id or "",
                    name=name,
                    status="success" if reply.results[at].success else "error",
                )
                for at, (id, name, _) in enumerate(asked)
            ]
        }

    return tools

