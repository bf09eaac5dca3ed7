"""A toolset of Pydantic AI whose tools a fleet carries out::

    agent = Agent(model, toolsets=[FleetToolset(fleet, "kelly")])

Pydantic AI hands out the calls of a response one by one, so each is a turn of its own. The arguments are checked by the fleet.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema
from typing_extensions import Unpack

from tickfleet.adapters._calls import call_of, definitions, run, told
from tickfleet.client import AsyncFleet, TurnFields

_ANYTHING = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class FleetToolset(AbstractToolset[Any]):
    """The tools that the fleet lets the agent call."""

    def __init__(
        self, fleet: AsyncFleet, agent: str, *, tenant: str | None = None, **fields: Unpack[TurnFields]
    ) -> None:
        self._fleet = fleet
        self._agent = agent
        self._tenant = tenant
        self._fields = fields

    @property
    def id(self) -> str | None:
        """Names this toolset among those of an agent."""
        return f"tickfleet-{self._agent}"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Asks the fleet anew in every step: who may call what can change meanwhile."""
        return {
            tool.name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=tool.name, description=tool.description, parameters_json_schema=tool.parameters
                ),
                max_retries=0,
                args_validator=_ANYTHING,
            )
            for tool in await definitions(self._fleet, self._agent, self._tenant)
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Has one call carried out."""
        call = call_of(name, json.dumps(tool_args), ctx.tool_call_id)
        reply = await run(self._fleet, self._agent, [call], self._fields, self._tenant)
        return told(reply)
