"""The client for producers in Python: submit the calls of a model, delegate tasks, get the replies.

::

    from tickfleet import Fleet

    with Fleet("redis://127.0.0.1:6379", tenant="demo") as fleet:
        reply = fleet.run("kelly", tool_calls=message.tool_calls)
        messages += reply.messages

:class:`AsyncFleet` is the same for asyncio. Both need ``pip install 'tickfleet[client]'``.
"""

from tickfleet.client._aio import AsyncFleet, Format, Replies, Submitted, SubmittedTask
from tickfleet.client._errors import (
    Conflict,
    FleetError,
    InvalidMessage,
    NoDefinitions,
    NotAccepted,
    Pressure,
    QueueFull,
    Rejected,
    ReplyTimeout,
    Unavailable,
)
from tickfleet.client._events import Event
from tickfleet.client._message import Deadline, Priority, TaskFields, TurnFields, shard_of
from tickfleet.client._reply import CallError, Dialect, Reply, Result, Status
from tickfleet.client._sync import Fleet, SyncReplies, SyncSubmitted, SyncTask

__all__ = [
    "AsyncFleet",
    "CallError",
    "Conflict",
    "Deadline",
    "Dialect",
    "Event",
    "Fleet",
    "FleetError",
    "Format",
    "InvalidMessage",
    "NoDefinitions",
    "NotAccepted",
    "Pressure",
    "Priority",
    "QueueFull",
    "Rejected",
    "Replies",
    "Reply",
    "ReplyTimeout",
    "Result",
    "Status",
    "Submitted",
    "SubmittedTask",
    "SyncReplies",
    "SyncSubmitted",
    "SyncTask",
    "TaskFields",
    "TurnFields",
    "Unavailable",
    "shard_of",
]
