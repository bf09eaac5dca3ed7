"""Messages of a producer: turns, tasks and cancels as JSON, with the checks that a producer can make."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from typing_extensions import TypedDict

from tickfleet.client._definitions import Dialect
from tickfleet.client._errors import InvalidMessage

Priority = Literal["urgent", "high", "normal", "low"]
"""Priority of a turn or task."""

Deadline = datetime | timedelta | str
"""Expiry: a time with a zone, a duration from now, or RFC 3339. Calls that have not run end as ``expired``."""

# Maximums from docs/reference/limits-and-defaults.md.
NAME_BYTES_MAX = 64
ID_BYTES_MAX = 96
MESSAGE_BYTES_MAX = 1_048_576

_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")


class TurnFields(TypedDict, total=False):
    """The fields of a turn. Set exactly one of ``tool_calls``, ``content``, ``calls`` and ``answer``."""

    tool_calls: Iterable[Any] | None
    """Calls of an OpenAI Chat message, unmodified."""
    content: Any
    """Content blocks of Anthropic Messages; with a ``format``, Gemini's content."""
    calls: Any
    """``[{"id"?, "name", "arguments"?}]``, or in the dialect that ``format`` names."""
    answer: str | None
    """Text output of a model without function calling."""
    format: Dialect | None
    """Dialect of ``calls`` or ``content``."""
    turn_id: str | None
    """Makes the turn idempotent: the same id with the same calls runs once."""
    priority: Priority | None
    """Priority. Default: ``normal``."""
    deadline: Deadline | None
    """Expiry. Default: 24 hours from now."""
    user_context: Any
    """User data as JSON. Every tool and rule can read it."""
    session_data: Any
    """Conversation data for tools and rules."""
    session_id: str | None
    """Session of the facts."""
    correlation_id: str | None
    """Your own id, which the reply repeats."""
    traceparent: str | None
    """W3C trace context."""
    tracestate: str | None
    """W3C trace state."""
    task_id: str | None
    """Task that the turn belongs to."""
    audits: bool
    """Whether the reply contains the audit entries of the calls."""
    strict: bool
    """Whether the model had strict definitions."""
    stop_reason: str | None
    """Stop reason of the provider (``finish_reason``, ``stop_reason``). A truncated call does not run."""
    allowed_tools: Sequence[str] | None
    """Tools that the calls can use, among those of the agent."""
    parallel_reads: bool
    """Whether consecutive calls of read-only tools can run in parallel."""
    pending_approval: bool
    """Whether :attr:`Submitted.pending` lists the calls that wait for approval."""


class TaskFields(TypedDict, total=False):
    """The fields of a task."""

    input: Any
    """Structured input, as JSON."""
    task_id: str | None
    """Your own id. A task with an id that is already known runs once."""
    priority: Priority | None
    """Priority. Default: ``normal``."""
    deadline: Deadline | None
    """Expiry. Default: 24 hours from now."""
    delegator: str | None
    """Agent that delegates the task."""
    parent_task_id: str | None
    """Running parent task, whose budget is debited."""
    budget: int | None
    """Calls that turns under the task can make."""
    capabilities: Sequence[str] | None
    """Capabilities that turns under the task keep."""
    allowed_tools: Sequence[str] | None
    """Tools that the calls can use, among those of the agent."""
    user_context: Any
    """User data as JSON. Every tool and rule can read it."""
    session_data: Any
    """Conversation data for tools and rules."""
    session_id: str | None
    """Session of the facts."""
    correlation_id: str | None
    """Your own id, which the reply repeats."""
    traceparent: str | None
    """W3C trace context."""
    tracestate: str | None
    """W3C trace state."""


_CALLS = ("tool_calls", "content", "calls", "answer")
# Fields that do not identify a turn: two submissions of the same turn may differ in them.
_ASIDE = frozenset(
    ("deadline", "priority", "reply_to", "user_context", "session_data", "session_id", "correlation_id", "traceparent", "tracestate")
    + ("strict", "parallel_reads", "local_calls", "pending_approval", "tool_call_audits")
)
# Argument names that differ from the protocol's.
_RENAMED = {"audits": "tool_call_audits"}


def shard_of(tenant: str, shards: int) -> int:
    """Returns the shard of a tenant."""
    return zlib.crc32(tenant.encode()) % shards


def new_id() -> str:
    """Returns a unique id."""
    return uuid.uuid4().hex


def name(value: str, what: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Returns the value, if it is a valid name of a tenant, an agent or an inbox, or a valid id.

    Raises:
        InvalidMessage: The value is not valid.
    """
    if not isinstance(value, str) or not _NAME.match(value) or len(value) > bytes_max:
        allowed = f"1 to {bytes_max} characters of A-Z a-z 0-9 _ . -"
        raise InvalidMessage(f"{what} is {value!r}; expected {allowed}")
    return value


def plain(value: Any) -> Any:
    """Converts a value to JSON types, including Pydantic models, as in the SDKs of providers, and data classes."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json", exclude_unset=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(member) for member in value]
    return value


def _moment(deadline: Deadline) -> str:
    if isinstance(deadline, str):
        return deadline
    if isinstance(deadline, timedelta):
        deadline = datetime.now(timezone.utc) + deadline
    if deadline.tzinfo is None:
        raise InvalidMessage("deadline has no time zone; give it one, for example timezone.utc")
    return deadline.isoformat()


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that are set, by their protocol names."""
    said = {_RENAMED.get(key, key): value for key, value in fields.items() if value is not None and value is not False}
    if "deadline" in said:
        said["deadline"] = _moment(said["deadline"])
    for key in ("allowed_tools", "capabilities"):
        if key in said:
            said[key] = list(said[key])
    return said


def _owner(tenant: str | None) -> dict[str, Any]:
    """Returns the tenant field. It is empty if a gateway derives the tenant from the key."""
    return {} if tenant is None else {"tenant": name(tenant, "tenant")}


def turn_message(tenant: str | None, agent: str, reply_to: str | None, fields: TurnFields) -> dict[str, Any]:
    """Builds a turn. Generates an id if none is given, so that the turn can be sent again after a lost connection.

    Raises:
        InvalidMessage: The turn is invalid.
    """
    said = _filled(fields)
    given = [key for key in _CALLS if key in said]
    if len(given) != 1:
        raise InvalidMessage(f"a turn has exactly one of {', '.join(_CALLS)}; found {', '.join(given) or 'none'}")
    key = given[0]
    with _refused():
        said[key] = plain(list(said[key]) if key == "tool_calls" else said[key])
    said["turn_id"] = name(said.get("turn_id", None) or new_id(), "turn_id", ID_BYTES_MAX)
    head: dict[str, Any] = _owner(tenant) | {"agent": name(agent, "agent")}
    if reply_to is not None:
        head["reply_to"] = name(reply_to, "reply_to")
    return head | said


def task_message(
    tenant: str | None, agent: str, description: str, reply_to: str | None, fields: TaskFields
) -> dict[str, Any]:
    """Builds a task, with an id as in :func:`turn_message`.

    Raises:
        InvalidMessage: The task is invalid.
    """
    said = _filled(fields)
    said["task_id"] = name(said.get("task_id", None) or new_id(), "task_id", ID_BYTES_MAX)
    head: dict[str, Any] = {"op": "delegate"} | _owner(tenant) | {"target_agent": name(agent, "agent")}
    head["task_description"] = description
    if reply_to is not None:
        head["reply_to"] = name(reply_to, "reply_to")
    return head | said


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Rejects values that JSON cannot represent. Both :func:`asked` and :func:`written` use this, because `asked` runs
    first."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"it cannot be written as JSON in UTF-8: {error}") from error


def _text(message: Mapping[str, Any]) -> str:
    return json.dumps(plain(message), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def written(message: Mapping[str, Any]) -> str:
    """Encodes a message for its stream.

    Raises:
        InvalidMessage: The message cannot be encoded as JSON, or is too long.
    """
    with _refused():
        text = _text(message)
        length = len(text.encode())
    if length > MESSAGE_BYTES_MAX:
        raise InvalidMessage(f"it has {length} bytes; at most {MESSAGE_BYTES_MAX} are allowed")
    return text


def asked(message: Mapping[str, Any]) -> str:
    """Returns the content by which this process recognizes an equal turn or task.

    Raises:
        InvalidMessage: The message cannot be encoded as JSON.
    """
    said = {key: value for key, value in message.items() if key not in _ASIDE}
    with _refused():
        # JSON converts all keys to strings. The original keys could be of several types, which cannot be sorted.
        return json.dumps(json.loads(_text(said)), sort_keys=True)
