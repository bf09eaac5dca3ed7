"""Replies as docs/protocol.md has them, typed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from tickfleet.client._errors import Conflict, FleetError, Rejected

Dialect = Literal[
    "raw", "openai_chat", "openai_responses", "anthropic", "mcp", "gemini", "mcp_2026_07_28", "text"
]
"""The dialects of turns and replies."""

Status = Literal["done", "rejected", "conflict", "pending_approval"]
"""How a turn or task ended as a whole. ``pending_approval`` is no end: a call waits for people's consent."""

# Python refuses to read integers of more than 4,300 digits.
_DIGITS_MAX = 4_300

_ENDS = ("done", "rejected", "conflict")


@dataclass(frozen=True)
class CallError:
    """Why there is no output. The message is written for the model."""

    code: str
    message: str
    details: Any = None


@dataclass(frozen=True)
class Result:
    """The result of one call."""

    call: str
    """The fleet's id of the call, ``<turn id>/<position>``."""
    tool: str
    success: bool
    outcome: str
    """``ok``, ``denied``, ``invalid_arguments``, ``outcome_unknown``, … A later fleet may have more."""
    output: Any
    """JSON; ``None`` where the call did not succeed. Integers are exact, however long. A number that neither ``int`` nor
    ``float`` can hold is a :class:`decimal.Decimal`."""
    error: CallError | None
    tool_call_id: str | None
    """The provider's id, unchanged."""
    content_type: str
    duration_ms: int
    attempts: int
    repeats: str | None
    """The call whose outcome this is, where an equal one had been made before."""
    approval: Any = None
    """Of a call that needed people's consent and got it: ``id``, ``by``, and ``arguments`` where somebody changed them."""
    cached: Any = None
    """Where the output is the kept answer of another call: ``age_ms`` and that ``call``."""
    note: str | None = None
    """What the fleet tells the agent beside the result; the message to the model says it too."""


@dataclass(frozen=True)
class Reply:
    """The reply to a turn or task: every result, in call order."""

    id: str
    """The id of the turn or task."""
    kind: Literal["turn", "task"]
    tenant: str
    agent: str
    status: Status
    dialect: str
    results: list[Result]
    messages: list[Any]
    """The results in the dialect that the turn came in, ready to be appended to the conversation. Empty in raw."""
    error: CallError | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    audits: list[Any] | None = None
    """One audit entry for each call, where the turn asked for them."""
    approval: Any = None
    """What is waited for, where the status is ``pending_approval``: ``id``, ``call``, ``tool``, ``asked_ms``, ``until_ms``."""
    seq: int | None = None
    """Its number within the inbox; none where it was read from the turn's record."""
    missed: int = 0
    """Replies that are missing before this one: trimmed by age, or taken by another reader."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """The reply's JSON, with what this class has no word for."""

    @property
    def ok(self) -> bool:
        """Whether it was accepted and every call succeeded."""
        return self.status == "done" and all(result.success for result in self.results)

    @property
    def is_end(self) -> bool:
        """Whether no other reply about this turn or task follows."""
        return self.status in _ENDS

    @property
    def output(self) -> Any:
        """The output of the first call: of a task, what it came to."""
        return self.results[0].output if self.results else None

    def accepted(self) -> Reply:
        """This reply, where the message was accepted.

        Raises:
            Rejected: It was not.
            Conflict: Its id belongs to other content.
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
        FleetError: It is none.
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
        raise FleetError(f"a reply cannot be read: {type(error).__name__}: {error}", "unreadable") from error


def absent(place: str, kind: Literal["turn", "task"]) -> Reply:
    """The refusal of a turn or task (``<tenant>:<id>``) whose tenant is not configured. It has no inbox, so the fleet writes
    none."""
    tenant, _, id = place.partition(":")
    error = CallError("unknown_tenant", f"tenant {tenant!r} is not configured: is it misspelt? Nothing was carried out")
    return Reply(id, kind, tenant, "", "rejected", "raw", [], [], error)


def read_record(record: str) -> Reply | None:
    """Reads what ``done:<tenant>:<id>`` holds: a line that is the fleet's own, then the reply. None where memory was so
    short that the record was written without it."""
    _, _, reply = record.partition("\n")
    return read_reply(reply) if reply else None
