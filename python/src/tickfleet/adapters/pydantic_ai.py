"""A Pydantic AI toolset whose tools run in the fleet::

    agent = Agent(model, toolsets=[FleetToolset(fleet, "kelly")])

Pydantic AI makes each call of a response separately, so each call is a turn of its own. The fleet validates the
arguments.

The turn's id is derived from the response that made the call (run, provider id, time), the call id and the model's
unmodified arguments. All of these are in the message history. A history that is resumed twice receives the first
result. If an approval changes the arguments the second time, `Conflict` is raised. A run that is restarted from its
prompt requests a new response, whose calls are new calls.

A history from elsewhere, such as a user interface, can lack both the run and the provider id. For those, set ``run_id``
to a text or a function of the run's context: ``FleetToolset(fleet, "kelly", run_id=lambda ctx: ctx.deps.chat)``. A
resumed run must have the same ``run_id``, any other run a different one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema
from typing_extensions import Unpack

from tickfleet.adapters._calls import arguments_text, call_of, checked, definitions, run, run_named_by, told, turn_id
from tickfleet.client import AsyncFleet, InvalidMessage, TurnFields

_ANYTHING = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class FleetToolset(AbstractToolset[Any]):
    """The agent's tools, which run in the fleet.

    Args:
        fleet: Client of the fleet.
        agent: Agent that makes the calls.
        tenant: Tenant. Default: the client's tenant.
        run_id: Id of the run, as the module describes. Required if the message history has none.
        **fields: Fields of the turn of every call.

    Raises:
        InvalidMessage: A ``turn_id`` is set.
    """

    def __init__(
        self,
        fleet: AsyncFleet,
        agent: str,
        *,
        tenant: str | None = None,
        run_id: str | Callable[[RunContext[Any]], str] | None = None,
        **fields: Unpack[TurnFields],
    ) -> None:
        self._fleet = fleet
        self._agent = agent
        self._tenant = tenant
        self._run_id = run_id
        self._fields = checked(fields)

    @property
    def id(self) -> str | None:
        """Id of this toolset among those of an agent."""
        return f"tickfleet-{self._agent}"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Fetches the tool list in every step, because permissions can change."""
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
        """Runs one call in the fleet.

        Raises:
            InvalidMessage: The run of the call has no id.
        """
        call = call_of(name, arguments_text(tool_args), ctx.tool_call_id)
        place, written = self._origin(ctx, name)
        arguments = arguments_text(tool_args) if written is None else written
        id = turn_id("pydantic-ai", self._agent, place, ctx.tool_call_id, name, arguments)
        reply = await run(self._fleet, self._agent, [call], self._fields, self._tenant, id)
        return told(reply)

    def _origin(self, ctx: RunContext[Any], name: str) -> tuple[list[Any], str | None]:
        """Returns values that identify the response that made the call, and the call's arguments as written in the
        response. The arguments are ``None`` if several calls of the response share the id."""
        named = run_named_by(self._run_id, ctx)
        responses = [message for message in ctx.messages if isinstance(message, ModelResponse)]
        made = [(response, parts) for response in responses if (parts := _calls(response, ctx.tool_call_id))]
        if made:
            response, parts = made[-1]
            written = arguments_text(parts[0].args or {}) if len(parts) == 1 else None
            if named is not None:
                # A history from elsewhere has only the order of its messages.
                return [named, len(made)], written
            if response.run_id or response.provider_response_id:
                origin = _identity(response)
                return [origin, sum(_identity(other) == origin for other, _ in made)], written
        elif named is not None:
            return [named, 0], None
        raise InvalidMessage(
            f"the call of {name} cannot be distinguished from an equal call of another run: the message history names neither the run nor "
            "the provider's response that made it. Pass FleetToolset(…, run_id=…): a text, or a function of its context. "
            "It must be the same if the run is resumed. Or keep the history as ModelMessagesTypeAdapter writes it"
        )


def _calls(response: ModelResponse, id: str | None) -> list[ToolCallPart]:
    return [part for part in response.parts if isinstance(part, ToolCallPart) and part.tool_call_id == id]


def _identity(response: ModelResponse) -> list[str | None]:
    moment = response.timestamp.astimezone(timezone.utc).isoformat()
    return [response.run_id, response.provider_response_id, moment]
