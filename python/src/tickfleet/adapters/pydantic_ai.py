"""A Pydantic AI toolset whose tools run in the fleet::

    agent = Agent(model, toolsets=[FleetToolset(fleet, "kelly")])

Pydantic AI makes each call of a response separately, so each call is a turn of its own. The fleet validates the
arguments. If they are invalid, the model is asked to correct them, as often as the agent's ``retries`` allow. Any other
failed call is a failed tool return.

The turn's id is derived from the response that made the call (run, provider id, time) and the call id. All of these are
in the message history. A history that is resumed twice receives the first result. If an approval or an edit changes the
arguments of a call that was made, `Conflict` is raised. A run that is restarted from its prompt requests a new response,
whose calls are new calls.

A history from elsewhere, such as a user interface, can lack both the run and the provider id. For those, set ``run_id``
to a text or a function of the run's context: ``FleetToolset(fleet, "kelly", run_id=lambda ctx: ctx.deps.chat)``. A
resumed run must have the same ``run_id``, any other run a different one.

If a call waits for an approval of the fleet and the agent has ``DeferredToolRequests`` among its output types, the call
is deferred, and the run ends. After the decision, get the results and resume the run::

    results = await toolset.results(requests)
    await agent.run(message_history=history, deferred_tool_results=results)
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone
from typing import Any, TypeAlias, get_args

from typing_extensions import Unpack

from tickfleet.adapters._calls import (
    Caller,
    CallOptions,
    arguments_text,
    call_of,
    indistinct,
    missing,
    run_named_by,
    message,
    message_text,
)
from tickfleet.client import AsyncFleet, Reply

try:
    from pydantic_ai import (
        BinaryContent,
        CallDeferred,
        DeferredToolRequests,
        DeferredToolResults,
        ModelRetry,
        RunContext,
        ToolFailed,
    )
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_core import SchemaValidator, core_schema
except ImportError as error:
    raise missing("pydantic-ai", error) from error

Context: TypeAlias = RunContext[Any]
"""The context of a run, whose ``deps`` are those that were passed to ``run``."""

_ANYTHING = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class FleetToolset(AbstractToolset[Any]):
    """The agent's tools, which run in the fleet.

    Args:
        fleet: Client of the fleet.
        agent: Agent that makes the calls.
        run_id: Id of the run, as the module describes. Required if the message history has none.
        interrupt: Whether a call that waits for an approval is deferred. Default: if ``DeferredToolRequests`` is among
            the output types of the agent. A call that is not deferred waits for the decision.
        max_retries: How often in a row the model may correct invalid arguments of a tool. Default: the agent's
            ``retries``.
        **options: Further options: ``CallOptions``.

    Raises:
        InvalidMessage: An option is one that the adapter sets, or is unknown.
        TypeError: ``fleet`` is a blocking ``Fleet``.
    """

    def __init__(
        self,
        fleet: AsyncFleet,
        agent: str,
        *,
        run_id: str | Callable[[Context], str] | None = None,
        interrupt: bool | None = None,
        max_retries: int | None = None,
        **options: Unpack[CallOptions[Context]],
    ) -> None:
        if not isinstance(fleet, AsyncFleet):
            raise TypeError("FleetToolset needs an AsyncFleet")
        self._fleet = fleet
        self._agent = agent
        self._run_id = run_id
        self._interrupt = interrupt
        self._max_retries = max_retries
        self._caller: Caller[Context] = Caller("pydantic-ai", fleet, agent, options)

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
                max_retries=ctx.max_retries if self._max_retries is None else self._max_retries,
                args_validator=_ANYTHING,
            )
            for tool in await self._caller.definitions()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Runs one call in the fleet.

        Raises:
            ModelRetry: The arguments are invalid.
            ToolFailed: The call did not succeed.
            CallDeferred: The call waits for an approval.
            InvalidMessage: The run of the call has no id.
        """
        calls = [call_of(name, arguments_text(tool_args), ctx.tool_call_id)]
        id = self._caller.turn_id(*self._origin(ctx, name, tool_args))
        interrupts = _may_defer(ctx) if self._interrupt is None else self._interrupt
        found = await self._caller.ask(ctx, calls, id, interrupts)
        if not isinstance(found, Reply):
            raise CallDeferred(metadata=found)
        outcome = _outcome(found)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def results(self, requests: DeferredToolRequests, timeout: float | None = 300.0) -> DeferredToolResults:
        """Waits for the results of the calls that this toolset has deferred.

        Calls of other toolsets are not in the returned object: add their results before you resume the run.

        Args:
            requests: Output of the run. To keep it longer than the process, store it with ``TypeAdapter``.
            timeout: Seconds to wait for each result; ``None`` waits without limit.

        Raises:
            ReplyTimeout: A call still waits, or the fleet does not keep its result any more (``retention.records``).
        """
        found = DeferredToolResults()
        for call in requests.calls:
            about = requests.metadata.get(call.tool_call_id, {})
            if about.get("kind") == "tickfleet_approval":
                reply = await self._fleet.wait(about["turn"], tenant=self._caller.tenant, timeout=timeout)
                found.calls[call.tool_call_id] = _outcome(reply)
        return found

    def _origin(self, ctx: RunContext[Any], name: str, arguments: dict[str, Any]) -> list[Any]:
        """Returns values that identify the call: the response that made it, and its id."""
        named = run_named_by(self._run_id, ctx)
        responses = [message for message in ctx.messages if isinstance(message, ModelResponse)]
        made = [(response, parts) for response in responses if (parts := _calls(response, ctx.tool_call_id))]
        if not made and named is not None:
            return [[named, 0], ctx.tool_call_id, name, arguments_text(arguments)]
        if made:
            response, parts = made[-1]
            # If calls of the response share the id, only their names and arguments distinguish them.
            call = [ctx.tool_call_id] if len(parts) == 1 else [ctx.tool_call_id, name, arguments_text(arguments)]
            if named is not None:
                # A history without ids, for example from a user interface, identifies its messages only by their order.
                return [[named, len(made)], *call]
            if response.run_id or response.provider_response_id:
                origin = _identity(response)
                return [[origin, sum(_identity(other) == origin for other, _ in made)], *call]
        raise indistinct(
            name,
            "the message history names neither the run nor the provider's response that made it",
            "FleetToolset",
            "its context",
            ". Or keep the history as ModelMessagesTypeAdapter writes it",
        )


def _outcome(reply: Reply) -> str | list[str | BinaryContent] | ModelRetry | ToolFailed:
    """Returns the result of a call for Pydantic AI."""
    result = reply.results[0]
    if result.success:
        found = message(reply)
        if isinstance(found, str):
            return found
        return [part if isinstance(part, str) else BinaryContent.from_data_uri(part.url) for part in found]
    # The model can correct invalid arguments. A repeated call would not help after another failure.
    return ModelRetry(message_text(reply)) if result.outcome == "invalid_arguments" else ToolFailed(message_text(reply))


def _may_defer(ctx: RunContext[Any]) -> bool:
    """Returns whether the agent accepts deferred calls."""
    return ctx.agent is not None and _is_among(DeferredToolRequests, ctx.agent.output_type)


def _is_among(wanted: type, types: Any) -> bool:
    members = types if isinstance(types, (list, tuple)) else get_args(types)
    return types is wanted or any(_is_among(wanted, member) for member in members)


def _calls(response: ModelResponse, id: str | None) -> list[ToolCallPart]:
    return [part for part in response.parts if isinstance(part, ToolCallPart) and part.tool_call_id == id]


def _identity(response: ModelResponse) -> list[str | None]:
    moment = response.timestamp.astimezone(timezone.utc).isoformat()
    return [response.run_id, response.provider_response_id, moment]
