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
interruption of the run, as with ``needs_approval``, and ``tools.approvals(result)`` names the approval. After the
decision, call ``state.approve(item)`` and resume the run: the tool asks the fleet for the result. Only approvers of the
fleet decide: if the call still waits, the tool waits, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from typing_extensions import Unpack

from tickfleet.adapters._calls import (
    Caller,
    CallOptions,
    Definition,
    call_of,
    indistinct,
    message,
    missing,
    run_named_by,
)
from tickfleet.client import AsyncFleet, InvalidMessage, Reply

try:
    from agents import FunctionTool, RunContextWrapper, RunResult, RunResultStreaming, SpanError, Tool
    from agents.models.fake_id import FAKE_RESPONSES_ID
    from agents.tool import ToolOutputImage, ToolOutputText
    from agents.tool_context import ToolContext
    from agents.tracing import get_current_span
except ImportError as error:
    raise missing("openai-agents", error) from error

Context: TypeAlias = RunContextWrapper[Any]
"""The context of a run, whose ``context`` is the object that was passed to ``Runner.run``."""

# A shorter item id is a number that can also occur in other runs.
_ITEM_LENGTH_MIN = 16

# Maximum number of replies that arrive before the SDK calls their tools, and of descriptions of waiting calls.
_KEPT_MAX = 1_000

V = TypeVar("V")


class FleetTools(list[Tool]):
    """The agent's tools, as a list for ``Agent(tools=…)``."""

    def __init__(self, tools: Iterable[Tool], waiting: Callable[[Context, str | None], dict[str, Any] | None]) -> None:
        super().__init__(tools)
        self._waiting = waiting

    def approvals(self, result: RunResult | RunResultStreaming) -> list[dict[str, Any]]:
        """Returns descriptions of the calls that interrupt a run because they wait for an approval of the fleet.

        Each has the ``call_id`` of its interruption, ``kind``, ``approval``, ``turn``, ``tool``, ``arguments``,
        ``deadline`` and, with ``console_url``, ``console``. Store them with the state of the run: another process cannot
        derive them. Interruptions of other tools, and of ``needs_approval`` of the SDK, are not among them.

        Args:
            result: Result of the interrupted run.
        """
        run = result.context_wrapper
        found = [(item.call_id, self._waiting(run, item.call_id)) for item in result.interruptions]
        return [{"call_id": id, **notice} for id, notice in found if notice is not None]


async def fleet_tools(
    fleet: AsyncFleet,
    agent: str,
    *,
    run_id: str | Callable[[Context], str] | None = None,
    interrupt: bool = False,
    **options: Unpack[CallOptions[Context]],
) -> FleetTools:
    """Returns the agent's tools, which run in the fleet.

    Args:
        fleet: Client of the fleet.
        agent: Agent that makes the calls.
        run_id: Id of the run, as the module describes. Required if the model gives its items no ids.
        interrupt: Whether a call that waits for an approval interrupts the run. Set it only if your program resumes
            interrupted runs: another program would take the run for ended. Requires ``run_id``, because the SDK asks for
            approvals without the id of the item. The call is submitted when the SDK asks, so a tool with input
            guardrails waits instead.
        **options: Further options: ``CallOptions``.

    Raises:
        NoDefinitions: No worker has published a tool list.
        InvalidMessage: An option is one that the adapter sets, or is unknown; ``interrupt`` lacks ``run_id``; or, from a
            call, the run has no id.
        TypeError: ``fleet`` is a blocking ``Fleet``.
    """
    if not isinstance(fleet, AsyncFleet):
        raise TypeError("fleet_tools of the OpenAI Agents SDK needs an AsyncFleet")
    if interrupt and run_id is None:
        raise InvalidMessage("interrupt=True requires run_id=…: the SDK asks for approvals without the id of the item")
    caller: Caller[Context] = Caller("openai-agents", fleet, agent, options)
    replies: dict[str, Reply] = {}
    notices: dict[str, dict[str, Any]] = {}

    def tool(definition: Definition) -> Tool:
        async def waits_for_approval(context: Context, arguments: dict[str, Any], call_id: str) -> bool:
            # The SDK evaluates the tool's input guardrails only after this function. They must decide before the call
            # runs.
            if made.tool_input_guardrails:
                return False
            try:
                text = _canonical(arguments)
            except ValueError:
                return False
            id = caller.turn_id([run_named_by(run_id, context)], call_id)
            found = await caller.ask(context, [call_of(definition.name, text, call_id)], id, True)
            if isinstance(found, Reply):
                _keep(replies, id, found)
                return False
            _keep(notices, id, found)
            return True

        async def invoke(context: ToolContext[Any], arguments: str) -> str | list[ToolOutputText | ToolOutputImage]:
            id = caller.turn_id(_place(run_named_by(run_id, context), context), context.tool_call_id)
            notices.pop(id, None)
            found = replies.pop(id, None)
            if found is None:
                text = _unchanged_or_canonical(arguments) if interrupt else arguments
                calls = [call_of(definition.name, text, context.tool_call_id)]
                reply = await caller.ask(context, calls, id, False)
                assert isinstance(reply, Reply)
                found = reply
            result = found.results[0]
            if not result.success:
                # As for a failing tool of the SDK, the model receives the error, and the trace contains the error.
                data = {"tool_name": definition.name, "outcome": result.outcome}
                if (span := get_current_span()) is not None:
                    span.set_error(SpanError(message="the call did not succeed", data=data))
            return _output(found)

        made = FunctionTool(
            name=definition.name,
            description=definition.description,
            params_json_schema=definition.parameters,
            on_invoke_tool=invoke,
            # The fleet checks the arguments against the tool author's schema, even if the schema is not strict.
            strict_json_schema=False,
            needs_approval=waits_for_approval if interrupt else False,
        )
        return made

    def waiting(context: Context, call_id: str | None) -> dict[str, Any] | None:
        return notices.get(caller.turn_id([run_named_by(run_id, context)], call_id))

    return FleetTools([tool(definition) for definition in await caller.definitions()], waiting)


def _keep(found: dict[str, V], id: str, value: V) -> None:
    """Keeps a value, in place of the oldest one if there are too many."""
    while len(found) >= _KEPT_MAX:
        del found[next(iter(found))]
    found[id] = value


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


def _output(reply: Reply) -> str | list[ToolOutputText | ToolOutputImage]:
    """Returns the output of a call for the SDK."""
    found = message(reply)
    if isinstance(found, str):
        return found
    return [
        ToolOutputText(text=part) if isinstance(part, str) else ToolOutputImage(image_url=part.url) for part in found
    ]


def _place(run: str | None, context: ToolContext[Any]) -> list[str]:
    """Returns the id of the run, or of the response's item."""
    if run is not None:
        return [run]
    item = getattr(context.tool_call, "id", None)
    if item == FAKE_RESPONSES_ID:
        item = None
    if item is None or len(item) < _ITEM_LENGTH_MIN:
        why = f"the model's id for it is {item!r}"
        raise indistinct(context.tool_name, why, "fleet_tools", "the run's context")
    return ["item", item]
