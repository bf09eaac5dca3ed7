"""Shared code of the adapters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Generic, TypeVar, cast

from typing_extensions import TypedDict

from tickfleet.client import AsyncFleet, Fleet, InvalidMessage, PendingApproval, Priority, Reply, TurnFields
from tickfleet.client._aio import TIMEOUT

C = TypeVar("C")
"""The framework's context of a run."""

BUILTIN_TOOLS = frozenset({"check_task", "fetch_result", "list_tools"})
"""Tools that every agent may call without a permission."""


class CallFields(TypedDict, total=False):
    """Further fields of the turns that an adapter submits."""

    priority: Priority | None
    """Priority. Default: ``normal``."""
    correlation_id: str | Callable[[Any], str | None] | None
    """Your own id, which the reply repeats, or a function of the run's context."""
    traceparent: str | Callable[[Any], str | None] | None
    """W3C trace context, or a function of the run's context."""
    tracestate: str | Callable[[Any], str | None] | None
    """W3C trace state, or a function of the run's context."""
    task_id: str | Callable[[Any], str | None] | None
    """Task that the turns belong to, or a function of the run's context."""
    strict: bool
    """Whether the model had strict definitions."""


@dataclass(frozen=True)
class Definition:
    """A tool definition for a model."""

    name: str
    description: str
    parameters: dict[str, Any]


def call_of(name: str, arguments: str, id: str | None) -> dict[str, Any]:
    """Returns a call in the format of OpenAI Chat."""
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({} if id is None else {"id": id})


def arguments_text(arguments: Any) -> str:
    """Returns arguments as JSON text. Members are sorted, because a history that was stored and loaded may order them
    differently, and the fleet compares the text of a repeated turn."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True)


def turn_id(framework: str, *parts: Any) -> str:
    """Returns an id that is the same for equal parts, and differs for different ones. The parts are JSON values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"{framework}-{hashlib.sha256(text.encode()).hexdigest()}"


def run_named_by(run_id: str | Callable[[Any], str] | None, context: Any) -> str | None:
    """Returns the id of a run that its owner has set, if any.

    Raises:
        InvalidMessage: The id is empty or not a text.
    """
    named = run_id(context) if callable(run_id) else run_id
    if named is None and run_id is None:
        return None
    if not isinstance(named, str) or not named:
        raise InvalidMessage(f"run_id is {named!r}; expected a text that is unique to this run")
    return named


def told(reply: Reply, at: int = 0) -> str:
    """Returns the message to the model about a call."""
    return str(reply.messages[at]["content"])


def notice(
    approval: PendingApproval, turn: str, calls: Sequence[Mapping[str, Any]], tenant: str, console_url: str | None
) -> dict[str, Any]:
    """Returns the description of a wait for people, as JSON."""
    function = calls[approval.position]["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = function["arguments"]
    deadline = datetime.fromtimestamp(approval.until_ms // 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    console = {} if console_url is None else {"console": f"{console_url.rstrip('/')}/console/#/approvals"}
    return {
        "kind": "tickfleet_approval",
        "approval": f"{tenant}:{approval.id}" if tenant else approval.id,
        "turn": turn,
        "tool": function["name"],
        "arguments": arguments,
        "deadline": deadline,
    } | console


class Caller(Generic[C]):
    """Makes the calls of an agent in the fleet, each with the fields of the current run.

    Args:
        fleet: Client of the fleet.
        agent: Agent that makes the calls.
        tenant: Tenant. Default: the client's tenant.
        timeout: Seconds to wait for a reply; ``None`` waits without limit.
        allowed_tools: Tools that the model sees and may call, among those of the agent.
        builtin_tools: Whether the model also sees the built-in tools.
        console_url: URL under which the console is reachable.
        fields: Fields of the turns. A function is called with the context of each run.

    Raises:
        InvalidMessage: A field is one that the adapter sets, or is unknown.
    """

    def __init__(
        self,
        fleet: AsyncFleet | Fleet,
        agent: str,
        *,
        tenant: str | None,
        timeout: float | None = TIMEOUT,
        allowed_tools: Collection[str] | None = None,
        builtin_tools: bool = False,
        console_url: str | None = None,
        fields: Mapping[str, Any],
    ) -> None:
        self.fleet = fleet
        self.agent = agent
        self.tenant = tenant
        self.timeout = timeout
        self.console_url = console_url
        self._builtin_tools = builtin_tools
        self._fields = _checked(fields)
        if isinstance(allowed_tools, str):
            raise InvalidMessage(f"allowed_tools is the text {allowed_tools!r}; expected a list of names")
        self._allowed = None if allowed_tools is None else set(allowed_tools)
        if self._allowed is not None and builtin_tools:
            self._allowed |= BUILTIN_TOOLS

    def fields(self, context: C, calls: Sequence[Mapping[str, Any]], id: str) -> TurnFields:
        """Returns the fields of a turn for the current run."""
        own = {key: value(context) if callable(value) else value for key, value in self._fields.items()}
        # The fleet compares this field of a repeated turn, so its order must not change.
        allowed = None if self._allowed is None else sorted(self._allowed)
        return cast(TurnFields, own | {"tool_calls": calls, "turn_id": id, "allowed_tools": allowed})

    async def ask(
        self, context: C, calls: Sequence[Mapping[str, Any]], id: str, interrupt: bool
    ) -> Reply | dict[str, Any]:
        """Runs calls of one model response as one turn. Returns the reply. With ``interrupt``, returns the notice of an
        approval as soon as a call waits for one."""
        assert isinstance(self.fleet, AsyncFleet)
        fields = self.fields(context, calls, id)
        if not interrupt:
            return await self.fleet.run(self.agent, tenant=self.tenant, timeout=self.timeout, **fields)
        submitted = await self.fleet.submit(self.agent, tenant=self.tenant, **fields)
        found = await submitted.reply_or_approval(self.timeout)
        return found if isinstance(found, Reply) else notice(found, id, calls, submitted.tenant, self.console_url)

    def ask_blocking(
        self, context: C, calls: Sequence[Mapping[str, Any]], id: str, interrupt: bool
    ) -> Reply | dict[str, Any]:
        """Like :meth:`ask`, with a blocking client."""
        assert isinstance(self.fleet, Fleet)
        fields = self.fields(context, calls, id)
        if not interrupt:
            return self.fleet.run(self.agent, tenant=self.tenant, timeout=self.timeout, **fields)
        submitted = self.fleet.submit(self.agent, tenant=self.tenant, **fields)
        found = submitted.reply_or_approval(self.timeout)
        return found if isinstance(found, Reply) else notice(found, id, calls, submitted.tenant, self.console_url)

    async def definitions(self) -> list[Definition]:
        """Returns the tools for the model.

        Raises:
            NoDefinitions: No worker has published a tool list.
        """
        assert isinstance(self.fleet, AsyncFleet)
        shown = await self.fleet.tools(self.agent, format="openai", tenant=self.tenant)
        if self._are_named_in(shown):
            return self._chosen(shown, shown)
        return self._chosen(shown, await self.fleet.tools(self.agent, format="raw", tenant=self.tenant))

    def definitions_blocking(self) -> list[Definition]:
        """Like :meth:`definitions`, with a blocking client."""
        assert isinstance(self.fleet, Fleet)
        shown = self.fleet.tools(self.agent, format="openai", tenant=self.tenant)
        if self._are_named_in(shown):
            return self._chosen(shown, shown)
        return self._chosen(shown, self.fleet.tools(self.agent, format="raw", tenant=self.tenant))

    def _are_named_in(self, shown: list[dict[str, Any]]) -> bool:
        """Returns whether the definitions for a model have all allowed names. In a dialect, a tool can have another
        name."""
        return not self._allowed or self._allowed <= {definition["function"]["name"] for definition in shown}

    def _chosen(self, shown: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[Definition]:
        found = []
        for definition, raw in zip(shown, own):
            tool = definition["function"]
            names = {tool["name"], raw.get("name", tool["name"])}
            is_wanted = self._builtin_tools or not names & BUILTIN_TOOLS
            if is_wanted if self._allowed is None else names & self._allowed:
                found.append(Definition(tool["name"], tool.get("description", ""), tool["parameters"]))
        return found


_FIELDS = frozenset(CallFields.__annotations__) | {
    "user_context",
    "session_data",
    "session_id",
    "deadline",
    "parallel_reads",
}


def _checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the turns that are set.

    Raises:
        InvalidMessage: A field is one that the adapter sets, or is unknown.
    """
    if "turn_id" in fields:
        raise InvalidMessage("turn_id: omit it; the adapter derives an id for the turn of each call")
    if unknown := sorted(set(fields) - _FIELDS):
        raise InvalidMessage(f"{', '.join(unknown)}: not a field of the turns of an adapter")
    return {key: value for key, value in fields.items() if value is not None}
