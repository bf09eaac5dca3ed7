"""Errors of the client, one class for each reaction of a caller.

A failed call is not an error here: its result reports the failure, and the model reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tickfleet.client._reply import Reply

# After these rejections, the same message can be accepted later, under the same id.
_PASSING = frozenset({"tenant_queue_full", "inbox_full", "too_many_inboxes", "too_many_cancels", "refused"})


E = TypeVar("E", bound="FleetError")


class FleetError(Exception):
    """Base of all errors of this client.

    Attributes:
        code: Error code for programs.
    """

    code: str = "error"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling calls the constructor with `args`. Not every class here has a constructor with these arguments.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[E], args: tuple[Any, ...], state: dict[str, Any]) -> E:
    """Restores a pickled error."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidMessage(FleetError, ValueError):
    """The turn or task is invalid. Nothing was sent."""

    code = "invalid"


class NotAccepted(FleetError):
    """The fleet accepts no new work at the moment. Nothing was sent; retry later with the same id.

    Attributes:
        code: ``queue_full``, ``pressure`` or, of a gateway, another word.
        retry_after: Seconds to wait before a retry, if a gateway names them.
    """

    code = "not_accepted"
    retry_after: float | None = None


class QueueFull(NotAccepted):
    """Too many turns or tasks wait for admission."""

    code = "queue_full"


class MemoryPressure(NotAccepted):
    """The memory of Redis is nearly full."""

    code = "pressure"


class Throttled(NotAccepted):
    """The gateway, or a proxy in front of it, throttles this caller: ``inbox_full``, ``too_many_cancels``, or a
    rate."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}", code)


class Rejected(FleetError):
    """The fleet rejected the message.

    Attributes:
        code: Reason, such as ``unknown_agent``, ``malformed_json`` or ``inbox_full``.
        message: The reason as text.
        reply: The whole reply. Its ``messages`` contain a result for every call, so that the conversation stays
            consistent.
    """

    def __init__(self, code: str, message: str, reply: Reply) -> None:
        super().__init__(f"{code}: {message}", code)
        self.message = message
        self.reply = reply

    @property
    def passing(self) -> bool:
        """Whether the same message may be accepted later, under the same id."""
        return self.code in _PASSING


class Conflict(FleetError):
    """The id belongs to an earlier turn or task with different content.

    Attributes:
        id: The id.
        code: ``conflict``.
    """

    code = "conflict"

    def __init__(self, id: str, message: str) -> None:
        super().__init__(f"conflict: {id}: {message}")
        self.id = id
        self.message = message


class ReplyTimeout(FleetError, TimeoutError):
    """No reply arrived in time. Either the turn or task is unfinished: wait again by its id, or cancel it. Or the
    fleet does not know the tenant or the id. Over Redis the two cases look the same.

    Attributes:
        id: Id of the turn or task.
    """

    code = "timeout"

    def __init__(self, id: str, seconds: float, tenant: str | None = None) -> None:
        # The tenant is unknown if a gateway derives it from the key.
        super().__init__(
            f"no reply to {id} within {seconds:g} s. It can still run or wait for approval, or the fleet does not know the "
            f"tenant or the id: tickfleet explain {tenant or 'TENANT'}:{id}"
        )
        self.id = id


class Unavailable(FleetError, ConnectionError):
    """Redis or the gateway is unreachable or returns an error.

    Attributes:
        id: The id of the turn or task that was being sent. It may have been accepted: submit it again with this id; it
            runs once. ``None`` if nothing was being sent.
    """

    code = "unavailable"

    def __init__(self, message: str, id: str | None = None) -> None:
        super().__init__(message)
        self.id = id


class WrongLoop(FleetError, RuntimeError):
    """An :class:`AsyncFleet` was used from a second event loop."""

    code = "wrong_loop"


class NoDefinitions(FleetError, LookupError):
    """No worker has published a tool list for the agent. Check the agent's name and that a worker runs."""

    code = "no_definitions"


class Unauthorized(FleetError, PermissionError):
    """The API key or token is unknown or expired."""

    code = "unauthorized"


class Forbidden(FleetError, PermissionError):
    """The API key does not cover the tenant, the agent or the permission."""

    code = "forbidden"


class NotFound(FleetError, LookupError):
    """The gateway does not know the turn or task, or the key does not cover its agent."""

    code = "not_found"


class Unsupported(FleetError, NotImplementedError):
    """The operation works only with Redis, not through a gateway. Nothing was sent."""

    code = "unsupported"
