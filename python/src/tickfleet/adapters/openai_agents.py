"""Tools of a fleet for the OpenAI Agents SDK::

    agent = Agent(name="kelly", tools=await fleet_tools(fleet, "kelly"))

The SDK makes each call of a response separately, so each call is a turn of its own. The turn's id is derived from the
id of the response's item (``fc_…`` in the Responses API) and the call id. A ``RunState`` that is resumed twice receives
the first result.

The SDK has no run id. Models over Chat Completions have no item ids either, and some repeat call ids in each response.
For those, set ``run_id`` to a text or a function of the run's context::

    tools = await fleet_tools(fleet, "kelly", run_id=lambda run: run.context["order"])
    await Runner.run(agent, "Pay the invoice.", context={"order": "order-17"})

A resumed run must have the same ``run_id``, any other run a different one. Within a run, the SDK rejects a call id that
is reused for another call.

A call that waits for an approval of the fleet waits inside the tool. With ``interrupt=True``, it becomes an
interruption of the run, as with ``needs_approval``. After the decision, call ``state.approve(item)`` and resume the run:
the tool asks the fleet for the result. Only approvers of the fleet decide: if the call still waits, the tool waits, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from agents import FunctionTool, RunContextWrapper, SpanError, Tool
from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.tool_context import ToolContext
from agents.tracing import get_current_span
from typing_extensions import Unpack

from tickfleet.adapters._calls import CallFields, Caller, Definition, call_of, run_named_by, told, turn_id
from tickfleet.client import AsyncFleet, Deadline, InvalidMessage, Reply

Context: TypeAlias = RunContextWrapper[Any]
"""The context of a run, whose ``context`` is the object that was passed to ``Runner.run``."""

_ITEM_LENGTH_MIN = 16
# A shorter item id is a number that other runs have, too, so it does not identify the run.

_REPLIES_MAX = 1_000
# Replies that were received before the SDK called their tools.


async def fleet_tools(
    fleet: AsyncFleet,
    agent: str,
    *,
    tenant: str | None = None,
    run_id: str | Callable[[Context], str] | None = None,
    timeout: float | None = 300.0,
    interrupt: bool = False,
    allowed_tools: Collection[str] | None = None,
    builtin_tools: bool = False,
    user_context: Any | Callable[[Context], Any] = None,
    session_data: Any | Callable[[Context], Any] = None,
    session_id: str | Callable[[Context], str | None] | None = None,
    deadline: Deadline | Callable[[Context], Deadline | None] | None = None,
    **fields: Unpack[CallFields],
) -> list[Tool]:
    """Returns the agent's tools, which run in the fleet.

    Args:
        fleet: Client of the fleet.
        agent: Agent that makes the calls.
        tenant: Tenant. Default: the client's tenant.
        run_id: Id of the run, as the module describes. Required if the model gives its items no ids.
        timeout: Seconds to wait for a result, after which the run ends with ``ReplyTimeout``; ``None`` waits without
            limit.
        interrupt: Whether a call that waits for an approval interrupts the run. Requires ``run_id``, because the SDK
            asks for approvals without the id of the item. The call is submitted when the SDK asks, so a tool with input
            guardrails waits instead.
        allowed_tools: Tools that the model sees and may call, among those that its permissions grant. A run must be
            resumed with the same names.
        builtin_tools: Whether to include the built-in tools.
        user_context: User data as JSON, which every tool and rule can read. A function, as for the next three
            arguments, is called for each call.
        session_data: Conversation data for tools and rules.
        session_id: Session of the facts.
        deadline: Expiry of the calls.
        **fields: Further fields of the turn of every call.

    Raises:
        NoDefinitions: No worker has published a tool list.
        InvalidMessage: A field is set that belongs to the adapter; ``interrupt`` lacks ``run_id``; or, from a call, the
            run has no id.
        TypeError: ``fleet`` is a blocking ``Fleet``.
    """
    if not isinstance(fleet, AsyncFleet):
        raise TypeError("fleet_tools of the OpenAI Agents SDK needs an AsyncFleet")
    if interrupt and run_id is None:
        raise InvalidMessage("interrupt=True requires run_id=…: the SDK asks for approvals without the id of the item")
    caller: Caller[Context] = Caller(
        fleet,
        agent,
        tenant=tenant,
        timeout=timeout,
        allowed_tools=allowed_tools,
        builtin_tools=builtin_tools,
        fields={
            **fields,
            "user_context": user_context,
            "session_data": session_data,
            "session_id": session_id,
            "deadline": deadline,
        },
    )
    replies: dict[str, Reply] = {}

    def tool(definition: Definition) -> Tool:
        async def waits_for_approval(context: Context, arguments: dict[str, Any], call_id: str) -> bool:
            # Input guardrails of the tool must decide before the call runs. The SDK evaluates them later.
            if made.tool_input_guardrails:
                return False
            try:
                text = _canonical(arguments)
            except ValueError:
                return False
            id = turn_id("openai-agents", agent, [run_named_by(run_id, context)], call_id)
            found = await caller.ask(context, [call_of(definition.name, text, call_id)], id, True)
            if not isinstance(found, Reply):
                return True
            while len(replies) >= _REPLIES_MAX:
                del replies[next(iter(replies))]
            replies[id] = found
            return False

        async def invoke(context: ToolContext[Any], arguments: str) -> str:
            id = turn_id("openai-agents", agent, _place(run_named_by(run_id, context), context), context.tool_call_id)
            found = replies.pop(id, None)
            if found is None:
                text = _unchanged_or_canonical(arguments) if interrupt else arguments
                calls = [call_of(definition.name, text, context.tool_call_id)]
                reply = await caller.ask(context, calls, id, False)
                assert isinstance(reply, Reply)
                found = reply
            result = found.results[0]
            if not result.success:
                # As for a failing tool of the SDK: the model reads the error, and the trace has it, too.
                data = {"tool_name": definition.name, "outcome": result.outcome}
                if (span := get_current_span()) is not None:
                    span.set_error(SpanError(message="the call did not succeed", data=data))
            return told(found)

        made = FunctionTool(
            name=definition.name,
            description=definition.description,
            params_json_schema=definition.parameters,
            on_invoke_tool=invoke,
            # The schema comes from the tool's author. The fleet checks arguments against it in any case.
            strict_json_schema=False,
            needs_approval=waits_for_approval if interrupt else False,
        )
        return made

    return [tool(definition) for definition in await caller.definitions()]


def _canonical(arguments: dict[str, Any]) -> str:
    """Returns the text of arguments that the SDK has parsed.

    Raises:
        ValueError: JSON has no such number.
    """
    return json.dumps(arguments, sort_keys=True, allow_nan=False)


def _unchanged_or_canonical(arguments: str) -> str:
    """Returns the text under which the call was submitted when the SDK asked for an approval."""
    try:
        parsed = json.loads(arguments)
        return _canonical(parsed) if isinstance(parsed, dict) else arguments
    except ValueError:
        return arguments


def _place(run: str | None, context: ToolContext[Any]) -> list[str]:
    """Returns the id of the run, or of the response's item."""
    if run is not None:
        return [run]
    item = getattr(context.tool_call, "id", None)
    if item == FAKE_RESPONSES_ID:
        item = None
    if item is None or len(item) < _ITEM_LENGTH_MIN:
        raise InvalidMessage(
            f"the call of {context.tool_name} cannot be distinguished from an equal call of another run: the model's id "
            f"for it is {item!r}. Pass fleet_tools(…, run_id=…): a text, or a function of the run's context. It must be "
            "the same if the run is resumed, and different for other runs"
        )
    return ["item", item]
