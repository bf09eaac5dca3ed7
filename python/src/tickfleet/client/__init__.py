"""The client for producers in Python: submit the calls of a model, delegate tasks, get the replies.

::

    from tickfleet import Fleet

    with Fleet("redis://127.0.0.1:6379", tenant="demo") as fleet:
        reply = fleet.run("kelly", tool_calls=message.tool_calls)
        messages += reply.messages

:class:`AsyncFleet` is the same for asyncio. ``redis://`` needs ``pip install 'tickfleet[redis]'``, a gateway
(``Fleet("https://gateway.example.com", api_key=key)``) Python 3.11 or later.
"""

from tickfleet.client._aio import AsyncFleet, Submitted, SubmittedTask
from tickfleet.client._definitions import Dialect, Format
from tickfleet.client._errors import (
    Conflict,
    FleetError,
    Forbidden,
    InvalidMessage,
    NoDefinitions,
    NotAccepted,
    NotFound,
    MemoryPressure,
    QueueFull,
    Rejected,
    ReplyTimeout,
    Throttled,
    Unauthorized,
    Unavailable,
    Unsupported,
    WrongLoop,
)
from tickfleet.client._events import Event
from tickfleet.client._governed import AsyncGoverned, CallFailed, CallRefused, Governed, OutcomeUnknown
from tickfleet.client._message import Deadline, Priority, TaskFields, TurnFields, shard_of
from tickfleet.client._replies import Replies
from tickfleet.client._reply import CallError, PendingApproval, Reply, Result, Status
from tickfleet.client._sync import Fleet, SyncReplies, SyncSubmitted, SyncTask
from tickfleet.client._transport import ApiKey

__all__ = [
    "ApiKey",
    "AsyncFleet",
    "AsyncGoverned",
    "CallError",
    "CallFailed",
    "CallRefused",
    "Conflict",
    "Deadline",
    "Dialect",
    "Event",
    "Fleet",
    "FleetError",
    "Forbidden",
    "Format",
    "Governed",
    "InvalidMessage",
    "NoDefinitions",
    "NotAccepted",
    "NotFound",
    "OutcomeUnknown",
    "PendingApproval",
    "MemoryPressure",
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
    "Throttled",
    "TurnFields",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
    "WrongLoop",
    "shard_of",
]
