"""What can go wrong between a producer and its fleet, one class for each thing that a caller does differently.

A call that failed is no error here: its result says so, and the model reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tickfleet.client._reply import Reply

# The same message may be accepted later, under the same id.
_PASSING = frozenset({"tenant_queue_full", "inbox_full", "too_many_inboxes", "too_many_cancels", "refused"})


E = TypeVar("E", bound="FleetError")


class FleetError(Exception):
    """What all errors of this client have in common.

    Attributes:
        code: A word that programs can read.
    """

    code: str = "error"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is made anew from `args` when it is unpickled, which are not the arguments of every class here.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[E], args: tuple[Any, ...], state: dict[str, Any]) -> E:
    """An error as it was pickled."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidMessage(FleetError, ValueError):
    """A turn or task breaks a rule of the protocol, whenever it is submitted. Nothing was sent."""

    code = "invalid"


class NotAccepted(FleetError):
    """The fleet takes nothing new at the moment. Nothing was sent; try again later, under the same id.

    Attributes:
        code: ``queue_full``, ``pressure`` or, of a gateway, another word.
        retry_after: Seconds after which a gateway says that it is worth another try; none where it does not.
    """

    code = "not_accepted"
    retry_after: float | None = None


class QueueFull(NotAccepted):
    """Too many turns or tasks wait to be admitted."""

    code = "queue_full"


class Pressure(NotAccepted):
    """Redis' memory is nearly full."""

    code = "pressure"


class Throttled(NotAccepted):
    """A gateway, or what stands before it, takes no more from this caller at the moment: ``inbox_full``, ``too_many_cancels``,
    a rate."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}", code)


class Rejected(FleetError):
    """The fleet has read the message and does not carry it out.

    Attributes:
        code: Why, as a word of docs/protocol.md: ``unknown_agent``, ``malformed_json``, ``inbox_full`` …
        message: The same in words.
        reply: The whole reply. Its ``messages`` answer every call, so that the conversation stays consistent.
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
    """The id was used before, for other content. What the other turn became is not told here.

    Attributes:
        id: The id.
        code: ``conflict``.
    """

    code = "conflict"

    def __init__(self, id: str, message: str) -> None:
        super().__init__(f"conflict: {message}")
        self.id = id
        self.message = message


class ReplyTimeout(FleetError, TimeoutError):
    """No reply came in time, for one of two causes: the turn or task has not ended, and may be waited for again by its id, or
    cancelled; or the fleet knows no such tenant, or no such id (any more), and no reply comes. Over Redis nobody says which.

    Attributes:
        id: The id of the turn or task.
    """

    code = "timeout"

    def __init__(self, id: str, seconds: float) -> None:
        super().__init__(
            f"no reply to {id} within {seconds:g} s: it may still be carried out. It has not ended, or the fleet knows no such "
            "tenant or id: then no reply comes"
        )
        self.id = id


class Unavailable(FleetError, ConnectionError):
    """Redis or the gateway cannot be reached, or does not do what it is asked.

    Attributes:
        id: The id of the turn or task that was being sent. It may have been taken in: submit it again under this id, which
            carries it out once. None where nothing was being sent.
    """

    code = "unavailable"

    def __init__(self, message: str, id: str | None = None) -> None:
        super().__init__(message)
        self.id = id


class WrongLoop(FleetError, RuntimeError):
    """An :class:`AsyncFleet` was used from another event loop than before, to which its connections belong."""

    code = "wrong_loop"


class NoDefinitions(FleetError, LookupError):
    """No worker has told which tools the agent may call: is the agent known, and does a worker run?"""

    code = "no_definitions"


class Unauthorized(FleetError, PermissionError):
    """The gateway does not know the key or token, or its time is over."""

    code = "unauthorized"


class Forbidden(FleetError, PermissionError):
    """The gateway's key is not for this: another tenant, agent or verb."""

    code = "forbidden"


class NotFound(FleetError, LookupError):
    """The gateway knows nothing of this turn or task, or the key is not for its agent."""

    code = "not_found"


class Unsupported(FleetError, NotImplementedError):
    """It works through Redis alone, not through a gateway. Nothing was sent."""

    code = "unsupported"
