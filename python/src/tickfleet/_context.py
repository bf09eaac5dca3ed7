"""The facts of a call, for a tool that asks for them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from tickfleet._errors import ToolError


class Cancellation:
    """Says whether the call is still wanted: it is cancelled at its timeout, or when somebody cancels its turn."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Cancels the call. Workers do so; a test may."""
        self._event.set()

    @property
    def requested(self) -> bool:
        """True once nobody waits for the result any more."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits in a synchronous tool: like ``time.sleep``, but it ends at once when the call is cancelled.

        Returns:
            True if it was cancelled.
        """
        return self._event.wait(seconds)

    def check(self) -> None:
        """Raises :class:`asyncio.CancelledError` once nobody waits for the result any more."""
        if self.requested:
            raise asyncio.CancelledError


@dataclass(frozen=True)
class InnerResult:
    """What a call of another tool came to: what the model would have been told of it.

    Attributes:
        outcome: In a word, as results have it: ``ok``, ``denied``, ``invalid_arguments``, ...
        output: What the tool returned, as JSON values; None where it did not succeed.
        error: Why it did not succeed, in words that a model can act on.
    """

    outcome: str
    output: Any = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """True if it succeeded."""
        return self.outcome == "ok"

    def unwrap(self) -> Any:
        """Returns the output.

        Raises:
            ToolError: It did not succeed; permanent, with its own words.
        """
        if not self.ok:
            raise ToolError.permanent(self.error or self.outcome)
        return self.output


class Caller(Protocol):
    """Makes calls of other tools: the host does, and a test may."""

    def __call__(self, tool: str, arguments: dict[str, Any], /) -> concurrent.futures.Future[InnerResult]:
        """Makes a call of another tool."""


def _no_caller(tool: str, arguments: dict[str, Any], /) -> concurrent.futures.Future[InnerResult]:
    raise ToolError.permanent("No other tool can be called from here.")


@dataclass(frozen=True)
class Context:
    """The facts of one call. A parameter of this type is filled in by the worker; models never see it.

    Attributes:
        tenant: Whose call it is.
        agent: The agent that makes it.
        call_id: Tickfleet's own id of the call.
        idempotency_key: The same for every try of this call: hand it to services that know such keys.
        attempt: The number of this try, from 1.
        user_context: What the producer says of the user whom the agent acts for; any JSON, or None.
        session_data: The conversation's own data; any JSON, or None.
        correlation_id: What the producer pairs the call with its own request by, if anything.
        traceparent: The W3C trace context for requests to other services, if there is one.
        task: The task that the call belongs to, if it belongs to one.
        deadline: When the call must be over, seconds since the epoch.
        cancelled: Whether the call is still wanted.
        caller: Makes calls of other tools; see :meth:`call`.
        log: Goes to the worker's log with the call's id; secrets are taken out there.
    """

    tenant: str
    agent: str
    call_id: str
    idempotency_key: str
    attempt: int = 1
    user_context: Any = None
    session_data: Any = None
    correlation_id: str | None = None
    traceparent: str | None = None
    task: str | None = None
    deadline: float = float("inf")
    cancelled: Cancellation = field(default_factory=Cancellation)
    log: logging.Logger | logging.LoggerAdapter[logging.Logger] = field(
        default_factory=lambda: logging.getLogger("tickfleet.tool")
    )

    caller: Caller = field(default=_no_caller, repr=False, compare=False)

    async def call(self, tool: str, arguments: dict[str, Any] | None = None) -> InnerResult:
        """Calls another tool as the same agent, with its permissions, limits and caps, and waits for the result.

        For tools with the effect ``read`` or ``idempotent``. The first time, the function ends here, and holds nothing
        while the inner call runs; when that has ended, the function is run again from its beginning, and gets the
        result. So nothing before an inner call may have an effect of its own, and the calls must come in the same order
        each time; each is carried out once, however often the function is run. One after the other, not at once.
        """
        return await asyncio.wrap_future(self.caller(tool, arguments or {}))

    def call_blocking(self, tool: str, arguments: dict[str, Any] | None = None) -> InnerResult:
        """The same as :meth:`call` in a synchronous tool."""
        try:
            return self.caller(tool, arguments or {}).result()
        except concurrent.futures.CancelledError:
            # One that `except Exception` does not catch: the function ends here.
            raise asyncio.CancelledError from None

    @property
    def remaining(self) -> float:
        """Seconds until the call must be over; none are left after its deadline."""
        return max(0.0, self.deadline - time.time())
