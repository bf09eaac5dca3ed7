"""The context of a call, for tools with a parameter of this type."""

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
    """Signal that the call was canceled, at its timeout or with its turn."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Cancels the call. For workers and tests."""
        self._event.set()

    @property
    def requested(self) -> bool:
        """True once the call is canceled."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits in a synchronous tool: like ``time.sleep``, but it ends at once when the call is canceled.

        Returns:
            True if the call was canceled.
        """
        return self._event.wait(seconds)

    def check(self) -> None:
        """Raises :class:`asyncio.CancelledError` if the call is canceled."""
        if self.requested:
            raise asyncio.CancelledError


@dataclass(frozen=True)
class InnerResult:
    """The result of an inner call, as a model would receive it.

    Attributes:
        outcome: Outcome: ``ok``, ``denied``, ``invalid_arguments``, ...
        output: Output as JSON values; ``None`` after a failure.
        error: Error message for the model; ``None`` after a success.
    """

    outcome: str
    output: Any = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.outcome == "ok"

    def unwrap(self) -> Any:
        """Returns the output.

        Raises:
            ToolError: The call failed. The error is permanent and has the message of the call.
        """
        if not self.ok:
            raise ToolError.permanent(self.error or self.outcome)
        return self.output


class Caller(Protocol):
    """Calls other tools. The tool host supplies it; a test can supply its own."""

    def __call__(self, tool: str, arguments: dict[str, Any], /) -> concurrent.futures.Future[InnerResult]:
        """Calls another tool."""
        ...


def _no_caller(tool: str, arguments: dict[str, Any], /) -> concurrent.futures.Future[InnerResult]:
    raise ToolError.permanent("No other tool can be called from here.")


class Reporter(Protocol):
    """Receives the progress of a call. The tool host supplies it; a test can supply its own."""

    def __call__(self, fraction: float | None, message: str, /) -> None:
        """Receives one report."""


def _no_reporter(fraction: float | None, message: str, /) -> None:
    """Ignores a report, because a call without a worker has no followers."""


@dataclass(frozen=True)
class Context:
    """The context of one call. The worker supplies a parameter of this type; models do not see it.

    Attributes:
        tenant: Tenant of the call.
        agent: Agent that makes the call.
        call_id: Call id of the fleet.
        idempotency_key: Idempotency key, the same for every attempt. Pass it to services that support such keys.
        attempt: Number of this attempt, from 1.
        user_context: User data of the producer, as JSON, or None.
        session_data: Conversation data, as JSON, or None.
        correlation_id: The producer's own id, if any.
        traceparent: W3C trace context for requests to other services, if any.
        task: Task that the call belongs to, if any.
        deadline: Deadline of the call in seconds since the epoch.
        cancelled: Signal that the call was canceled, at its timeout or with its turn.
        caller: Calls other tools; see :meth:`call`.
        reporter: Receives the progress of the call; see :meth:`progress`.
        log: Logger that writes to the worker's log with the call id. Secrets are redacted.
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
    reporter: Reporter = field(default=_no_reporter, repr=False, compare=False)

    def progress(self, fraction: float | None, message: str = "") -> None:
        """Reports the progress of the call to followers of its turn. The fleet shows the latest report, at most one
        per second.

        Args:
            fraction: From 0 to 1; ``None`` if unknown.
            message: Text for people, of which the first 500 bytes are shown.

        Raises:
            ValueError: The fraction is not between 0 and 1.
        """
        if fraction is not None and not (isinstance(fraction, (int, float)) and 0 <= fraction <= 1):
            raise ValueError(f"fraction is {fraction!r}; expected a number from 0 to 1, or None")
        self.reporter(None if fraction is None else float(fraction), str(message))

    async def call(self, tool: str, arguments: dict[str, Any] | None = None) -> InnerResult:
        """Calls another tool as the same agent, with its permissions, limits and caps, and waits for the result.

        Only for tools with the effect ``read`` or ``idempotent``. The first run of the function stops here. When the
        inner call has ended, the function runs again from its start and receives the result. Code before an inner
        call must therefore have no effect, and inner calls must come in the same order in each run. Each inner call
        runs once. Make them one after the other.
        """
        return await asyncio.wrap_future(self.caller(tool, arguments or {}))

    def call_blocking(self, tool: str, arguments: dict[str, Any] | None = None) -> InnerResult:
        """Like :meth:`call`, for synchronous tools."""
        try:
            return self.caller(tool, arguments or {}).result()
        except concurrent.futures.CancelledError:
            # `except Exception` in the tool does not catch this error, so the function ends here.
            raise asyncio.CancelledError from None

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self.deadline - time.time())
