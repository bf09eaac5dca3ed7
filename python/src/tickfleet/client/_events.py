"""Events of a task, from its history and its record."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tickfleet.client._message import ID_BYTES_MAX, name
from tickfleet.client._reply import Reply, absent, read_record

if TYPE_CHECKING:
    from tickfleet.client._redis import Redis

_LOOK_EVERY = 0.25
# After this many seconds without a step, the client checks whether the tenant exists.
_ABSENT_AFTER = 1.0

Kind = Literal["plan", "result", "note", "agent_message", "summary", "ended", "other"]


@dataclass(frozen=True)
class Event:
    """An event of a task."""

    kind: Kind
    """``plan``: the model requests calls. ``result``: a call has its result. ``note``: the model received a note.
    ``agent_message``: it received another agent's message. ``summary``: old steps were summarized. ``ended``."""
    position: int
    """Number of steps so far, from which `follow` can continue."""
    text: str = ""
    """Text of the event."""
    tool: str | None = None
    """Tool of a result."""
    success: bool | None = None
    """Whether the call succeeded."""
    calls: list[dict[str, str]] = field(default_factory=list)
    """Calls of a plan: ``{"tool", "arguments"}`` with the model's unmodified arguments."""
    reply: Reply | None = None
    """The task's reply, for ``ended``, if its record has one."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """The event as JSON."""


_KINDS: dict[str, Kind] = {
    "plan": "plan",
    "result": "result",
    "note": "note",
    "agent_message": "agent_message",
    "summary": "summary",
}


def step(entry: str, position: int) -> Event:
    """Parses a step. An unreadable step, or one of a newer version, is ``other``."""
    try:
        value = json.loads(entry)
        return Event(
            kind=_KINDS.get(value.get("k"), "other"),
            position=position,
            text=str(value.get("text", value.get("content", ""))),
            tool=value.get("tool"),
            success=value.get("ok"),
            calls=list(value.get("calls", [])),
            raw=value,
        )
    except (ValueError, AttributeError, TypeError):
        return Event(kind="other", position=position)


async def follow(redis: Redis, prefix: str, tenant: str, task_id: str, position: int) -> AsyncGenerator[Event, None]:
    """Yields the events of a task from a position on."""
    place = f"{tenant}:{name(task_id, 'task_id', ID_BYTES_MAX)}"
    first, started = position, time.monotonic()
    while True:
        # The record comes first. Otherwise, steps that were written between the two reads could be missed.
        record = await redis.get(f"{prefix}done:{place}")
        began = time.monotonic()
        steps = await redis.history(f"{prefix}parts:steps:{place}", position)
        for entry in steps:
            position += 1
            yield step(entry, position)
        if not steps and record is not None:
            yield Event(kind="ended", position=position, reply=read_record(record))
            return
        # After this time, the scheduler has rejected any message of an unknown tenant.
        is_late = position == first and time.monotonic() - started > _ABSENT_AFTER
        if is_late and await redis.is_absent(prefix, place):
            yield Event(kind="ended", position=position, reply=absent(place, "task"))
            return
        if not steps:
            await asyncio.sleep(max(0.0, _LOOK_EVERY - (time.monotonic() - began)))
