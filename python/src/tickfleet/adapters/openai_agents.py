"""Tools of a fleet for the OpenAI Agents SDK::

    agent = Agent(name="kelly", tools=await fleet_tools(fleet, "kelly"))

The SDK makes each call of a response separately, so each call is a turn of its own. The turn's id is derived from the
id of the response's item (``fc_…`` in the Responses API), the call id and the arguments. A ``RunState`` that is resumed
twice receives the first result.

The SDK has no run id. Models over Chat Completions have no item ids either, and some repeat call ids in each response.
For those, set ``run_id`` to a text or a function of the tool's context::

    tools = await fleet_tools(fleet, "kelly", run_id=lambda context: context.context["order"])
    await Runner.run(agent, "Pay the invoice.", context={"order": "order-17"})

A resumed run must have the same ``run_id``, any other run a different one. Within a run, the SDK rejects a call id that
is reused for another call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import FunctionTool, Tool
from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.tool_context import ToolContext
from typing_extensions import Unpack

from tickfleet.adapters._calls import Definition, call_of, checked, definitions, run, run_named_by, told, turn_id
from tickfleet.client import AsyncFleet, InvalidMessage, TurnFields


_ITEM_LENGTH_MIN = 16
# A shorter item id is a number that other runs have, too, so it does not identify the run.


async def fleet_tools(
    fleet: AsyncFleet,
    agent: str,
    *,
    tenant: str | None = None,
    run_id: str | Callable[[ToolContext[Any]], str] | None = None,
    **fields: Unpack[TurnFields],
) -> list[Tool]:
    """Returns the agent's tools, which run in the fleet.

    Args:
        fleet: Client of the fleet.
        agent: Agent that makes the calls.
        tenant: Tenant. Default: the client's tenant.
        run_id: Id of the run, as the module describes. Required if the model gives its items no ids.
        **fields: Fields of the turn of every call.

    Raises:
        NoDefinitions: No worker has published a tool list.
        InvalidMessage: A ``turn_id`` is set; or, from a call, the run has no id.
    """
    fields = checked(fields)

    def tool(definition: Definition) -> Tool:
        async def invoke(context: ToolContext[Any], arguments: str) -> str:
            call = call_of(definition.name, arguments, context.tool_call_id)
            place = _place(run_named_by(run_id, context), context, definition.name)
            id = turn_id("openai-agents", agent, place, context.tool_call_id, definition.name, arguments)
            return told(await run(fleet, agent, [call], fields, tenant, id))

        return FunctionTool(
            name=definition.name,
            description=definition.description,
            params_json_schema=definition.parameters,
            on_invoke_tool=invoke,
            # The schema comes from the tool's author. The fleet checks arguments against it in any case.
            strict_json_schema=False,
        )

    return [tool(definition) for definition in await definitions(fleet, agent, tenant)]


def _place(run: str | None, context: ToolContext[Any], tool: str) -> list[str | None]:
    """Returns the ids of the run, and of the response's item if the model sets one."""
    item = getattr(context.tool_call, "id", None)
    if item == FAKE_RESPONSES_ID:
        item = None
    if run is None and (item is None or len(item) < _ITEM_LENGTH_MIN):
        raise InvalidMessage(
            f"the call of {tool} cannot be distinguished from an equal call of another run: the model's id for it is {item!r}. Pass "
            "fleet_tools(…, run_id=…): a text, or a function of the tool's context. It must be the same if the run "
            "is resumed, and different for other runs"
        )
    return [run, item]
