"""Typed replies, as docs/reference/protocol.md specifies them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from tickfleet.client._definitions import Dialect
from tickfleet.client._errors import Conflict, FleetError, Rejected

Status = Literal["done", "rejected", "conflict", "pending_approval"]
"""Status of a turn or task. ``pending_approval`` is not final: a call waits for approval."""

# Python raises an error for integers of more than 4,300 digits.
_DIGITS_MAX = 4_300

_ENDS = ("done", "rejected", "conflict")


@dataclass(frozen=True)
class CallError:
    """The error of a call. The message is written for the model."""

    code: str
    message: str
    details: Any = None


@dataclass(frozen=True)
class PendingApproval:
    """An approval that a call of an unfinished turn waits for."""

    id: str
    """Id of the approval, without the tenant."""
    call: str
    """Call id of the fleet, ``<turn id>/<position>``."""
    until_ms: int
    """When the wait ends without a decision, in milliseconds since 1970."""

    @property
    def position(self) -> int:
        """Position of the call in its turn, from 0."""
        return int(self.call.rpartition("/")[2])


@dataclass(frozen=True)
class Result:
    """The result of one call."""

    call: str
    """Call id of the fleet, ``<turn id>/<position>``."""
    tool: str
    """Tool, as the model named it."""
    success: bool
    """Whether ``outcome`` is ``ok``."""
    outcome: str
    """``ok``, ``denied``, ``invalid_arguments``, ``outcome_unknown``, … Later versions can add outcomes."""
    output: Any
    """JSON; ``None`` where the call did not succeed. Integers are exact, however long. A number that neither ``int`` nor
    ``float`` can hold is a :class:`decimal.Decimal`."""
    error: CallError | None
    """Error of a failed call."""
    tool_call_id: str | None
    """Call id of the provider, unchanged."""
    content_type: str
    """Content type of the output."""
    duration_ms: int
    """Duration of the last attempt in milliseconds."""
    attempts: int
    """Number of attempts. 0 if the call never ran."""
    repeats: str | None
    """The earlier equal call whose outcome this is."""
    approval: Any = None
    """The approval of the call: ``id``, ``by``, and ``arguments`` if an approver changed them."""
    cached: Any = None
    """Set if the output comes from the read cache: ``age_ms`` and the original ``call``."""
    note: str | None = None
    """A note to the agent, which the message to the model contains too."""


@dataclass(frozen=True)
class Reply:
    """The reply to a turn or task, with one result per call, in order."""

    id: str
    """Id of the turn or task."""
    kind: Literal["turn", "task"]
    """``turn`` or ``task``."""
    tenant: str
    """Tenant."""
    agent: str
    """Agent that made the calls."""
    status: Status
    """Status of the turn or task."""
    dialect: str
    """Dialect of ``messages``."""
    results: list[Result]
    """One result per call, in order."""
    messages: list[Any]
    """Results in the dialect of the turn, ready to append to the conversation. Empty for ``raw``."""
    error: CallError | None = None
    """Reason of a rejection."""
    correlation_id: str | None = None
    """The producer's own id."""
    traceparent: str | None = None
    """W3C trace context."""
    audits: list[Any] | None = None
    """One audit entry per call, if the turn has ``audits``."""
    approval: Any = None
    """The approval, if the status is ``pending_approval``: ``id``, ``call``, ``tool``, ``requested_ms``, ``until_ms``."""
    seq: int | None = None
    """Number within the inbox. Absent if the reply comes from the record."""
    missed: int = 0
    """Missing replies before this one: expired, or taken by another reader."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """The reply as JSON, with fields that this class lacks."""

    @property
    def ok(self) -> bool:
        """Whether the message was accepted and every call succeeded."""
        return self.status == "done" and all(result.success for result in self.results)

    @property
    def is_end(self) -> bool:
        """Whether this is the last reply to the turn or task."""
        return self.status in _ENDS

    @property
    def output(self) -> Any:
        """The output of the first call, or of the task."""
        return self.results[0].output if self.results else None

    def accepted(self) -> Reply:
        """Returns this reply if the message was accepted.

        Raises:
            Rejected: The message was rejected.
            Conflict: The id belongs to different content.
        """
        if self.status == "done":
            return self
        code, message = ("internal", "no reason was given")
        if self.error is not None:
            code, message = self.error.code, self.error.message
        if self.status == "conflict":
            raise Conflict(self.id, message)
        raise Rejected(code, message, self)


def _error(value: Any) -> CallError | None:
    if value is None:
        return None
    return CallError(str(value["code"]), str(value["message"]), value.get("details"))


def _result(value: dict[str, Any]) -> Result:
    return Result(
        call=value["call"],
        tool=value["tool"],
        success=bool(value["success"]),
        outcome=value["outcome"],
        output=value.get("output"),
        error=_error(value.get("error")),
        tool_call_id=value.get("tool_call_id"),
        content_type=value.get("content_type", "application/json"),
        duration_ms=int(value.get("duration_ms", 0)),
        attempts=int(value.get("attempts", 0)),
        repeats=value.get("repeats"),
        approval=value.get("approval"),
        cached=value.get("cached"),
        note=value.get("note"),
    )


def _float(text: str) -> float | Decimal:
    number = float(text)
    return number if math.isfinite(number) else Decimal(text)


def _int(text: str) -> int | Decimal:
    return Decimal(text) if len(text) > _DIGITS_MAX else int(text)


def read_reply(text: str, seq: int | None = None, missed: int = 0) -> Reply:
    """Reads a reply.

    Raises:
        FleetError: The text is not a reply.
    """
    try:
        value: dict[str, Any] = json.loads(text, parse_float=_float, parse_int=_int)
        turn_id = value.get("turn_id")
        return Reply(
            id=turn_id if turn_id is not None else value.get("task_id") or "",
            kind="task" if turn_id is None and value.get("task_id") is not None else "turn",
            tenant=value["tenant"],
            agent=value.get("agent", ""),
            status=value["status"],
            dialect=value["dialect"],
            results=[_result(result) for result in value["results"]],
            messages=value.get("messages") or [],
            error=_error(value.get("error")),
            correlation_id=value.get("correlation_id"),
            traceparent=value.get("traceparent"),
            audits=value.get("tool_call_audits"),
            approval=value.get("approval"),
            seq=seq,
            missed=missed,
            raw=value,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FleetError(f"cannot read a reply: {type(error).__name__}: {error}", "unreadable") from error


UNKNOWN_TENANT = "unknown_tenant"
"""Code of the rejection of a message whose tenant is not configured."""


def absent(place: str, kind: Literal["turn", "task"]) -> Reply:
    """Returns the rejection of a turn or task (``<tenant>:<id>``) whose tenant is not configured. Such a tenant has no
    inbox, so the fleet writes no reply."""
    tenant, _, id = place.partition(":")
    error = CallError(UNKNOWN_TENANT, f"tenant {tenant!r} is not configured: is it misspelled? Nothing was carried out")
    return Reply(id, kind, tenant, "", "rejected", "raw", [], [], error)


def read_record(record: str) -> Reply | None:
    """Reads the value of ``done:<tenant>:<id>``: a line for the fleet, then the reply. Returns ``None`` if memory was
    short, so that the record has no reply."""
    _, _, reply = record.partition("\n")
    return read_reply(reply) if reply else None
