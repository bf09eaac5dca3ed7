"""Tickfleet for Python: tools that a fleet runs, and a client for services that submit turns.

Tools: start with :func:`tool`. A parameter of type :class:`Context` receives the context of the call;
:class:`ToolError` reports how a call failed. :mod:`tickfleet.testing` calls a tool as a worker would, without a worker.

Client: :class:`Fleet` and :class:`AsyncFleet`; over Redis, they need ``pip install 'tickfleet[redis]'``. The rest of the client
is in :mod:`tickfleet.client`, and adapters for agent frameworks are in :mod:`tickfleet.adapters`.
"""

from typing import TYPE_CHECKING, Any

from tickfleet._context import Context, InnerResult
from tickfleet._errors import DuplicateTool, ToolError
from tickfleet._image import Image
from tickfleet._options import Approval, Cache, Effect, Reconcile
from tickfleet._tool import Tool, registered, tool

if TYPE_CHECKING:
    from tickfleet.client import (
        AsyncFleet,
        CallFailed,
        CallRefused,
        Conflict,
        Fleet,
        FleetError,
        Forbidden,
        InvalidMessage,
        NoDefinitions,
        NotAccepted,
        NotFound,
        OutcomeUnknown,
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

#: Names of the client. Tools do not need the client, so it is imported on demand.
_CLIENT = (
    "AsyncFleet",
    "CallFailed",
    "CallRefused",
    "Conflict",
    "Fleet",
    "FleetError",
    "Forbidden",
    "InvalidMessage",
    "NoDefinitions",
    "NotAccepted",
    "NotFound",
    "OutcomeUnknown",
    "MemoryPressure",
    "QueueFull",
    "Rejected",
    "ReplyTimeout",
    "Throttled",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
    "WrongLoop",
)

__all__ = [
    "Approval",
    "AsyncFleet",
    "Cache",
    "CallFailed",
    "CallRefused",
    "Conflict",
    "Context",
    "DuplicateTool",
    "Effect",
    "Fleet",
    "FleetError",
    "Forbidden",
    "Image",
    "InnerResult",
    "InvalidMessage",
    "NoDefinitions",
    "NotAccepted",
    "NotFound",
    "OutcomeUnknown",
    "MemoryPressure",
    "QueueFull",
    "Reconcile",
    "Rejected",
    "ReplyTimeout",
    "Throttled",
    "Tool",
    "ToolError",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
    "WrongLoop",
    "registered",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name in _CLIENT:
        from tickfleet import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
