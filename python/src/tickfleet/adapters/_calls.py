"""Shared code of the adapters."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Generic, TypeVar, cast

from typing_extensions import TypedDict

from tickfleet.client import AsyncFleet, Deadline, Fleet, InvalidMessage, PendingApproval, Priority, Reply, TurnFields
from tickfleet.client._aio import TIMEOUT

C = TypeVar("C")
"""The framework's context of a run."""

BUILTIN_TOOLS = frozenset({"check_task", "fetch_result", "list_tools"})
"""Tools that every agent may call without a permission."""


class CallOptions(TypedDict, Generic[C], total=False):
    """Options of the adapters. A function is called with the framework's context of each run, or of each call if every
    call is a turn."""

    tenant: str | None
    """Tenant. Default: the client's tenant."""
    timeout: float | None
    """Seconds to wait for results, after which the call ends with ``ReplyTimeout``; ``None`` waits without limit.
    Default: 300."""
    console_url: str | None
    """URL of the gateway whose console approvers use. Descriptions of calls that wait then have a link."""
    allowed_tools: Collection[str] | None
    """Tools that the model sees and may call. They must be among the tools of the agent. A run must be resumed with
    the same names."""
    builtin_tools: bool
    """Whether the model also sees the built-in tools, and ``allowed_tools`` includes them."""
    user_context: Any | Callable[[C], Any]
    """User data as JSON, which every tool and rule can read."""
    session_data: Any | Callable[[C], Any]
    """Conversation data for tools and rules."""
    session_id: str | Callable[[C], str | None] | None
    """Session of the facts."""
    deadline: Deadline | Callable[[C], Deadline | None] | None
    """Expiry of the calls."""
    priority: Priority | None
    """Priority. Default: ``normal``."""
    correlation_id: str | Callable[[C], str | None] | None
    """Your own id, which the reply repeats."""
    traceparent: str | Callable[[C], str | None] | None
    """W3C trace context."""
    tracestate: str | Callable[[C], str | None] | None
    """W3C trace state."""
    task_id: str | Callable[[C], str | None] | None
    """Task that the turns belong to."""
    strict: bool
    """Whether the model had strict definitions."""


@dataclass(frozen=True)
class Definition:
    """A tool definition for a model."""

    name: str
    description: str
    parameters: dict[str, Any]


def missing(extra: str, error: ImportError) -> ImportError:
    """Returns the error for a framework that is not installed, or in another version than the adapter supports."""
    return ImportError(f"the adapter's framework is not installed ({error}): pip install 'tickfleet[{extra}]'")


def call_of(name: str, arguments: str, id: str | None) -> dict[str, Any]:
    """Returns a call in the format of OpenAI Responses, whose results can contain images."""
    call = {"type": "function_call", "name": name, "arguments": arguments}
    return call if id is None else call | {"call_id": id}


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


def indistinct(tool: str, why: str, where: str, source: str, or_else: str = "") -> InvalidMessage:
    """Returns the error for a call whose run nothing identifies."""
    return InvalidMessage(
        f"the call of {tool} cannot be distinguished from an equal call of another run: {why}. Pass {where}(…, run_id=…): "
        f"a text, or a function of {source}. It must be the same if the run is resumed, and different for other runs"
        f"{or_else}"
    )


@dataclass(frozen=True)
class ImagePart:
    """An image in a result."""

    media_type: str
    data: str
    """The image in base64."""

    @property
    def url(self) -> str:
        """The image as a data URL."""
        return f"data:{self.media_type};base64,{self.data}"


def message(reply: Reply, at: int = 0) -> str | list[str | ImagePart]:
    """Returns the message to the model about a call: a text, or texts and images."""
    output = reply.messages[at]["output"]
    return str(output) if not isinstance(output, list) else [_part(part) for part in output]


def _part(part: Mapping[str, str]) -> str | ImagePart:
    if part["type"] == "input_text":
        return part["text"]
    media_type, data = part["image_url"].removeprefix("data:").split(";base64,")
    return ImagePart(media_type, data)


def message_text(reply: Reply, at: int = 0) -> str:
    """Returns the message to the model about a call, without images. Failed calls have none."""
    found = message(reply, at)
    return found if isinstance(found, str) else "\n".join(part for part in found if isinstance(part, str))


def notice(
    approval: PendingApproval, turn: str, calls: Sequence[Mapping[str, Any]], tenant: str, console_url: str | None
) -> dict[str, Any]:
    """Returns the description of a wait for people, as JSON."""
    call = calls[approval.position]
    try:
        arguments = json.loads(call["arguments"])
    except ValueError:
        arguments = call["arguments"]
    deadline = datetime.fromtimestamp(approval.until_ms // 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    console = {} if console_url is None else {"console": f"{console_url.rstrip('/')}/console/#/approvals"}
    return {
        "kind": "tickfleet_approval",
        "approval": f"{tenant}:{approval.id}" if tenant else approval.id,
        "turn": turn,
        "tool": call["name"],
        "arguments": arguments,
        "deadline": deadline,
    } | console


class Caller(Generic[C]):
    """Makes the calls of an agent in the fleet, each with the fields of the current run.

    Args:
        framework: Name of the framework, which is a part of every id.
        fleet: Client of the fleet.
        agent: Agent that makes the calls.
        options: Options of the adapter.

    Raises:
        InvalidMessage: An option is one that the adapter sets, or is unknown.
    """

    def __init__(self, framework: str, fleet: AsyncFleet | Fleet, agent: str, options: Mapping[str, Any]) -> None:
        self.fleet = fleet
        self.agent = agent
        self.tenant: str | None = options.get("tenant")
        self._framework = framework
        self._timeout: float | None = options.get("timeout", TIMEOUT)
        self._console_url: str | None = options.get("console_url")
        self._builtin_tools: bool = options.get("builtin_tools", False)
        self._fields = _checked(options)
        allowed_tools: Collection[str] | None = options.get("allowed_tools")
        if isinstance(allowed_tools, str):
            raise InvalidMessage(f"allowed_tools is the text {allowed_tools!r}; expected a list of names")
        self._allowed = None if allowed_tools is None else set(allowed_tools)
        if self._allowed is not None and self._builtin_tools:
            self._allowed |= BUILTIN_TOOLS

    def turn_id(self, *parts: Any) -> str:
        """Returns the id of the turn that these parts identify."""
        return turn_id(self._framework, self.agent, *parts)

    def fields(self, context: C, calls: Sequence[Mapping[str, Any]], id: str) -> TurnFields:
        """Returns the fields of a turn for the current run."""
        own = {key: value(context) if callable(value) else value for key, value in self._fields.items()}
        # The fleet compares this field when a turn is repeated, so its order must not change.
        allowed = None if self._allowed is None else sorted(self._allowed)
        turn = {"calls": calls, "format": "openai_responses", "turn_id": id, "allowed_tools": allowed}
        return cast(TurnFields, own | turn)

    async def ask(
        self, context: C, calls: Sequence[Mapping[str, Any]], id: str, interrupt: bool
    ) -> Reply | dict[str, Any]:
        """Runs calls of one model response as one turn. Returns the reply. With ``interrupt``, returns the notice of an
        approval as soon as a call waits for one."""
        if isinstance(self.fleet, Fleet):
            return await asyncio.to_thread(self.ask_blocking, context, calls, id, interrupt)
        return await self._submitted(self.fleet, self.fields(context, calls, id), calls, id, interrupt)

    def ask_blocking(
        self, context: C, calls: Sequence[Mapping[str, Any]], id: str, interrupt: bool
    ) -> Reply | dict[str, Any]:
        """Like :meth:`ask`, in a thread without an event loop."""
        assert isinstance(self.fleet, Fleet)
        thread = self.fleet._running()
        return thread.run(self._submitted(thread.fleet, self.fields(context, calls, id), calls, id, interrupt))

    async def _submitted(
        self, fleet: AsyncFleet, fields: TurnFields, calls: Sequence[Mapping[str, Any]], id: str, interrupt: bool
    ) -> Reply | dict[str, Any]:
        if not interrupt:
            return await fleet.run(self.agent, tenant=self.tenant, timeout=self._timeout, **fields)
        submitted = await fleet.submit(self.agent, tenant=self.tenant, **fields)
        found = await submitted.reply_or_approval(self._timeout)
        return found if isinstance(found, Reply) else notice(found, id, calls, submitted.tenant, self._console_url)

    async def definitions(self) -> list[Definition]:
        """Returns the tools for the model.

        Raises:
            NoDefinitions: No worker has published a tool list.
        """
        assert isinstance(self.fleet, AsyncFleet)
        return await self._defined(self.fleet)

    def definitions_blocking(self) -> list[Definition]:
        """Like :meth:`definitions`, with a blocking client."""
        assert isinstance(self.fleet, Fleet)
        thread = self.fleet._running()
        return thread.run(self._defined(thread.fleet))

    async def _defined(self, fleet: AsyncFleet) -> list[Definition]:
        shown = own = await fleet.tools(self.agent, format="openai", tenant=self.tenant)
        if self._allowed and not self._allowed <= {definition["function"]["name"] for definition in shown}:
            # The dialect may have renamed a tool of the fleet, so the original names are needed too.
            own = await fleet.tools(self.agent, format="raw", tenant=self.tenant)
        found = []
        for definition, raw in zip(shown, own):
            tool = definition["function"]
            names = {tool["name"], raw.get("name", tool["name"])}
            is_wanted = self._builtin_tools or not names & BUILTIN_TOOLS
            if is_wanted if self._allowed is None else names & self._allowed:
                found.append(Definition(tool["name"], tool.get("description", ""), tool["parameters"]))
        return found


# Options that are not fields of a turn.
_OWN = frozenset({"tenant", "timeout", "console_url", "allowed_tools", "builtin_tools"})


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the turns that are set.

    Raises:
        InvalidMessage: An option is one that the adapter sets, or is unknown.
    """
    if "turn_id" in options:
        raise InvalidMessage("turn_id: omit it; the adapter derives an id for the turn of each call")
    if unknown := sorted(set(options) - set(CallOptions.__annotations__) - {"parallel_reads"}):
        raise InvalidMessage(f"{', '.join(unknown)}: not an option of an adapter")
    return {key: value for key, value in options.items() if value is not None and key not in _OWN}
