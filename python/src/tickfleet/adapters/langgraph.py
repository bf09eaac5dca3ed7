"""A LangGraph node that replaces ``ToolNode``::

    graph.add_node("tools", fleet_node(fleet, "kelly"))

Give the model the same tools with ``model.bind_tools(await fleet.tools("kelly"))``. All calls of a message are one
turn: they run in order, and their results arrive together.

The turn's id is derived from the thread, the checkpoint namespace, the message id and the calls. If a thread is
resumed, retried or replayed, in this process or another one, it receives the first results. The message id comes from
the model or from ``add_messages`` and is in the checkpoint. Without a thread or message ids, the id of the node's
execution is used. It stays the same if the node is retried or resumed from the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from typing_extensions import Unpack

from tickfleet.adapters._calls import arguments_text, call_of, checked, run, told, turn_id
from tickfleet.client import AsyncFleet, Fleet, InvalidMessage, TurnFields


def fleet_node(
    fleet: AsyncFleet,
    agent: str,
    *,
    tenant: str | None = None,
    messages_key: str = "messages",
    timeout: float | None = 300.0,
    **fields: Unpack[TurnFields],
) -> Callable[..., Coroutine[Any, Any, dict[str, list[ToolMessage]]]]:
    """Returns a node that runs the calls of the last message in the fleet and adds a message for each.

    Args:
        fleet: Client for asyncio.
        agent: Agent that makes the calls.
        tenant: Tenant. Default: the client's tenant.
        messages_key: Key of the state that holds the messages.
        timeout: Seconds to wait for the results of a message, after which the node raises ``ReplyTimeout``; ``None``
            waits without limit.
        **fields: Further fields of the turn.

    Raises:
        InvalidMessage: A ``turn_id`` is set; or, from the node, it does not run in a graph.
        TypeError: ``fleet`` is a synchronous ``Fleet``.
    """
    if isinstance(fleet, Fleet):
        raise TypeError("fleet_node needs an AsyncFleet")
    fields = checked(fields)

    # LangGraph passes `runtime` by its name.
    async def tools(state: dict[str, Any], runtime: Any = None) -> dict[str, list[ToolMessage]]:
        last = state[messages_key][-1]
        if not isinstance(last, AIMessage) or not (last.tool_calls or last.invalid_tool_calls):
            return {messages_key: []}
        asked = [(call["id"], call["name"], arguments_text(call["args"])) for call in last.tool_calls]
        # For invalid calls, the fleet's message tells the model how to correct them.
        asked += [(call["id"], call["name"] or "", call["args"] or "") for call in last.invalid_tool_calls]
        calls = [call_of(name, arguments, id) for id, name, arguments in asked]
        id = turn_id("langgraph", agent, _place(runtime, last, len(state[messages_key])), asked)
        reply = await run(fleet, agent, calls, fields, tenant, id, timeout)
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


def _place(runtime: Any, message: AIMessage, length: int) -> list[str | int | None]:
    """Returns values that identify the message among those of all threads and runs."""
    info = getattr(runtime, "execution_info", None)
    if info is None:
        raise InvalidMessage(
            "the calls cannot be distinguished from equal calls of another run: add fleet_node to a graph, which has "
            "a thread and an execution"
        )
    # The parent graph, with the execution that called this one. The last part is this node's own execution.
    parents = info.checkpoint_ns.rpartition("|")[0]
    if info.thread_id is not None and message.id:
        return ["message", str(info.thread_id), parents, message.id]
    return ["execution", info.thread_id and str(info.thread_id), info.checkpoint_ns, info.task_id, message.id, length]
