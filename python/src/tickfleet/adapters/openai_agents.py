"""Tools of a fleet for the OpenAI Agents SDK::

    agent = Agent(name="kelly", tools=await fleet_tools(fleet, "kelly"))

The SDK hands out the calls of a response one by one, so each is a turn of its own.
"""

from __future__ import annotations

from typing import Any

from agents import FunctionTool, Tool
from agents.tool_context import ToolContext
from typing_extensions import Unpack

from tickfleet.adapters._calls import Definition, call_of, definitions, run, told
from tickfleet.client import AsyncFleet, TurnFields


async def fleet_tools(
    fleet: AsyncFleet, agent: str, *, tenant: str | None = None, **fields: Unpack[TurnFields]
) -> list[Tool]:
    """The tools that the fleet lets the agent call; they are carried out there.

    Raises:
        NoDefinitions: No worker has told which these are.
    """

    def tool(definition: Definition) -> Tool:
        async def invoke(context: ToolContext[Any], arguments: str) -> str:
            call = call_of(definition.name, arguments, context.tool_call_id)
            return told(await run(fleet, agent, [call], fields, tenant))

        return FunctionTool(
            name=definition.name,
            description=definition.description,
            params_json_schema=definition.parameters,
            on_invoke_tool=invoke,
            # The schema is that of the tool's maker. The fleet checks arguments against it in any case.
            strict_json_schema=False,
        )

    return [tool(definition) for definition in await definitions(fleet, agent, tenant)]

