"""Governed local tools: the function stays in this process, and the fleet decides whether it may run.

A call is a turn. The fleet checks permission, arguments, rules, limits and approvals, and then offers the call to this
process. The process claims it, runs the function, and reports the end. Heartbeats extend the claim meanwhile. If the
process dies, the fleet reports an unknown outcome for a ``once`` tool, and offers any other call again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from typing_extensions import Unpack

from tickfleet._errors import ToolError
from tickfleet.client._errors import FleetError, InvalidMessage, ReplyTimeout, Unavailable
from tickfleet.client._message import TurnFields, name, new_id, plain, turn_message, written
from tickfleet.client._reply import Reply, Result
from tickfleet.client._transport import Awaited, Claim, Transport

if TYPE_CHECKING:
    from tickfleet.client._aio import AsyncFleet
    from tickfleet.client._sync import Fleet

R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("tickfleet.client")

# Seconds: the first and the longest pause between two checks for the offered call. Only for Redis.
_PAUSE = (0.005, 1.0)

# Longest wait of one claim through a gateway, in seconds.
_WAIT_S = 20

# Seconds to wait for the result after the function has run. After a timeout, a caller might repeat the effect.
_RESULT_S = 10.0

# Maximum characters of an exception's text in a report. The fleet allows 1,000 bytes.
_MESSAGE_CHARS_MAX = 300

_NEVER_RAN = frozenset(
    "unknown_tool denied invalid_arguments expired cancelled daily_cap_reached rejected approval_refused".split()
)


class CallFailed(FleetError):
    """The call of a governed function did not succeed.

    Attributes:
        outcome: The outcome, which is also the ``code``.
        result: The result of the call. Its ``error.message`` is written for the model.
    """

    def __init__(self, result: Result) -> None:
        error = result.error
        super().__init__(f"{result.outcome}: {error.message if error else ''}", result.outcome)
        self.outcome = result.outcome
        self.result = result


class CallRefused(CallFailed):
    """The function did not run: the call was denied, over a limit, not approved or canceled, or no process claimed it."""


class OutcomeUnknown(CallFailed):
    """The function may have taken effect: the process that ran it died or lost its claim, or it failed unexpectedly.
    Check the effect before you call it again."""


def _failed(result: Result) -> CallFailed:
    if result.outcome == "outcome_unknown":
        return OutcomeUnknown(result)
    return (CallRefused if result.outcome in _NEVER_RAN and result.attempts == 0 else CallFailed)(result)


class _Call:
    """One call of a governed function, from its submission to its reply."""

    def __init__(self, transport: Transport, tenant: str | None, id: str, awaited: Awaited, timeout: float | None) -> None:
        self._transport = transport
        self._tenant = tenant
        self.id = id
        self._awaited = awaited
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout
        self._claimant = f"py-{new_id()}"
        self._beating: asyncio.Task[None] | None = None

    async def next(self) -> Claim | Reply:
        """Waits until the fleet offers the call, or until the turn has ended.

        Raises:
            ReplyTimeout: Neither has happened in time.
        """
        pause = _PAUSE[0]
        while True:
            left = None if self._end is None else max(0.0, self._end - time.monotonic())
            wait = _WAIT_S if left is None else int(min(_WAIT_S, left))
            found = await self._transport.claim(self._tenant, self.id, self._claimant, wait)
            if found is None:
                found = await self._awaited.reply(pause if left is None else min(pause, left))
            if found is not None:
                return found
            if left is not None and left <= 0:
                raise ReplyTimeout(self.id, self._timeout or 0.0, self._tenant)
            pause = min(pause * 1.6, _PAUSE[1])

    async def start_heartbeats(self, claim: Claim) -> None:
        """Extends the claim until :meth:`conclude`."""
        self._beating = asyncio.create_task(self._beat(claim))

    async def _beat(self, claim: Claim) -> None:
        while True:
            await asyncio.sleep(claim.lease_ms / 3_000)
            try:
                await self._report(claim, {"op": "heartbeat"})
            except FleetError as error:
                # The function cannot be stopped. If the claim expires, the fleet reports an unknown outcome.
                log.warning("cannot extend the claim of %s: %s", self.id, error)

    async def conclude(self, claim: Claim, report: dict[str, Any]) -> None:
        """Reports the end of the function."""
        await self.stop_heartbeats()
        if self._end is not None:
            self._end = max(self._end, time.monotonic() + _RESULT_S)
        await self._report(claim, report)

    async def stop_heartbeats(self) -> None:
        """Stops the heartbeats, without a report."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait({beating})

    async def _report(self, claim: Claim, report: dict[str, Any]) -> None:
        await self._transport.report(self._tenant, self.id, report | {"lease": claim.lease})


class _RunState(Generic[R]):
    """What this process knows about its run of the function."""

    def __init__(self) -> None:
        self.has_returned = False
        self.value: R | None = None
        self.error: BaseException | None = None
        # A call that may have taken effect never runs again. This report is sent again instead.
        self.report: dict[str, Any] | None = None

    def returned(self, value: R) -> None:
        """The function has returned."""
        self.has_returned, self.value, self.error = True, value, None
        self.report = {"op": "finish", "output": _json(value)}

    def raised(self, error: BaseException) -> dict[str, Any]:
        """The function has raised. Returns the report."""
        self.error = error
        report, is_final = _failure(error)
        self.report = report if is_final else None
        return report

    def end(self, reply: Reply) -> Any:
        """The value of the call, given its reply.

        Raises:
            CallFailed: The call did not succeed.
            BaseException: What the function has raised in this process.
        """
        result = reply.accepted().results[0]
        if result.success:
            return self.value if self.has_returned else result.output
        if self.error is not None:
            raise self.error
        raise _failed(result)


def _json(value: Any) -> Any:
    """Returns the value as the fleet records it. The function has run, so a value that cannot be sent is replaced."""
    value = plain(value)
    try:
        written({"output": value})
    except InvalidMessage as error:
        return f"The function ran. Its output was not recorded: {error}"
    return value


def _failure(error: BaseException) -> tuple[dict[str, Any], bool]:
    """Returns the report about an exception, and whether the function must not run again."""
    if isinstance(error, ToolError):
        said = {"code": error.kind, "message": error.message[:_MESSAGE_CHARS_MAX] or error.kind}
        if error.kind != "transient":
            return {"op": "fail", "error": said}, True
        flags = {"retryable": True} | ({"not_executed": True} if error.not_executed else {})
        return {"op": "fail", "error": said} | flags, False
    said = {"code": type(error).__name__[:64], "message": f"{type(error).__name__}: {error}"[:_MESSAGE_CHARS_MAX]}
    return {"op": "fail", "error": said, "unknown": True}, True


def _arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments by name, with the function's defaults, because the policy must see what the function gets.
    A default of ``None`` is left out."""
    bound = signature.bind(*args, **kwargs)
    given = set(bound.arguments)
    bound.apply_defaults()
    return {key: value for key, value in bound.arguments.items() if key in given or value is not None}


def _as_called(arguments: dict[str, Any], claim: Claim) -> dict[str, Any]:
    """Returns the arguments to run with: the caller's own objects, where the fleet has not changed their JSON."""
    sent = json.loads(json.dumps(plain(arguments)))
    return {
        key: arguments[key] if key in arguments and sent[key] == value else value
        for key, value in claim.arguments.items()
    }


class _Governed(Generic[R]):
    """A governed function with the fields of its turns."""

    def __init__(
        self,
        agent: str,
        tool: str | None,
        function: Callable[..., Any],
        tenant: str | None,
        timeout: float | None,
        fields: TurnFields,
    ) -> None:
        functools.update_wrapper(cast(Callable[..., Any], self), function)
        self._function = function
        self._agent = name(agent, "agent")
        self._tool = tool or function.__name__
        self._signature = inspect.signature(function)
        self._tenant = tenant
        self._timeout = timeout
        self._fields = fields
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise InvalidMessage(f"{self._tool}: parameter {parameter.name!r} has no fixed name; the fleet needs one")
            if parameter.name == "turn_id":
                raise InvalidMessage(f"{self._tool}: the parameter name 'turn_id' is reserved for the id of the turn")
        if refused := {"turn_id", "calls", "tool_calls", "content", "answer", "format"} & set(fields):
            raise InvalidMessage(f"{', '.join(sorted(refused))}: not for a governed function, which makes the calls itself")

    async def _submit(self, fleet: AsyncFleet, arguments: dict[str, Any], turn_id: str | None) -> _Call:
        fleet.check_loop()
        transport = fleet._transport
        tenant = fleet._tenant_of(self._tenant)
        call = {"name": self._tool, "arguments": arguments}
        fields: TurnFields = {**self._fields, "calls": [call], "turn_id": turn_id}
        message = turn_message(tenant, self._agent, transport.inbox, fields) | {"local_calls": True}
        awaited = await transport.submit("turn", tenant, message, turn_id is not None, False)
        return _Call(transport, tenant, str(message["turn_id"]), awaited, self._timeout)


class AsyncGoverned(_Governed[R]):
    """A governed function, as a coroutine function. `turn_id` makes a call idempotent: the same id with the same
    arguments runs once, in any process."""

    def __init__(self, fleet: AsyncFleet, *args: Any) -> None:
        super().__init__(*args)
        self._fleet = fleet

    async def __call__(self, *args: Any, turn_id: str | None = None, **kwargs: Any) -> R:
        """Runs the function, if the fleet allows it.

        Raises:
            CallRefused: The function did not run.
            OutcomeUnknown: The function may have taken effect.
            CallFailed: The call failed in another process.
            Rejected, Conflict, ReplyTimeout, Unavailable: As :meth:`AsyncFleet.run`.
        """
        arguments = _arguments(self._signature, args, kwargs)
        call = await self._submit(self._fleet, arguments, turn_id)
        return cast(R, await _run_async(self._function, arguments, call, _same))

    def with_fields(self, **fields: Unpack[TurnFields]) -> AsyncGoverned[R]:
        """Returns the function with further fields of its turns, such as ``session_id`` or ``user_context``."""
        own: TurnFields = {**self._fields, **fields}
        return AsyncGoverned(self._fleet, self._agent, self._tool, self._function, self._tenant, self._timeout, own)


def _same(work: Coroutine[Any, Any, T]) -> Awaitable[T]:
    return work


async def _run_async(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    call: _Call,
    on_loop: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]],
) -> Any:
    """Runs a function in this event loop, or in a thread if it is not a coroutine function. `on_loop` runs the work of
    the client in the client's event loop."""
    ran: _RunState[Any] = _RunState()
    while True:
        found = await on_loop(call.next())
        if isinstance(found, Reply):
            return ran.end(found)
        report = ran.report
        if report is None:
            await on_loop(call.start_heartbeats(found))
            own = _as_called(arguments, found)
            try:
                value = await (function(**own) if inspect.iscoroutinefunction(function) else asyncio.to_thread(function, **own))
                ran.returned(value)
                report = ran.report
            except Exception as error:
                report = ran.raised(error)
            except BaseException as error:
                # The function may have taken effect, so the cancellation must not stop the report.
                await asyncio.shield(asyncio.ensure_future(_quietly(on_loop(call.conclude(found, ran.raised(error))))))
                raise
        await on_loop(call.conclude(found, report or {}))


async def _quietly(work: Awaitable[Any]) -> None:
    with contextlib.suppress(FleetError):
        await work


class Governed(_Governed[R]):
    """A governed function. It runs in the thread of its caller. `turn_id` makes a call idempotent: the same id with the
    same arguments runs once, in any process."""

    def __init__(self, fleet: Fleet, *args: Any) -> None:
        super().__init__(*args)
        self._fleet = fleet

    def __call__(self, *args: Any, turn_id: str | None = None, **kwargs: Any) -> R:
        """See :meth:`AsyncGoverned.__call__`. If the function is a coroutine function, returns a coroutine."""
        if inspect.iscoroutinefunction(self._function):
            return self._run_coroutine(args, kwargs, turn_id)  # type: ignore[return-value]
        arguments = _arguments(self._signature, args, kwargs)
        thread = self._fleet._running()
        call = thread.run(self._submit(thread.fleet, arguments, turn_id))
        ran: _RunState[R] = _RunState()
        while True:
            found = thread.run(call.next())
            if isinstance(found, Reply):
                ended: R = ran.end(found)
                return ended
            report = ran.report
            if report is None:
                thread.run(call.start_heartbeats(found))
                try:
                    ran.returned(self._function(**_as_called(arguments, found)))
                    report = ran.report
                except Exception as error:
                    report = ran.raised(error)
                except BaseException as error:
                    # The function may have taken effect, for example before Ctrl-C, so the report is sent.
                    with contextlib.suppress(FleetError):
                        thread.run(call.conclude(found, ran.raised(error)))
                    raise
            thread.run(call.conclude(found, report or {}))

    async def _run_coroutine(self, args: tuple[Any, ...], kwargs: dict[str, Any], turn_id: str | None) -> Any:
        arguments = _arguments(self._signature, args, kwargs)
        thread = self._fleet._running()

        def on_loop(work: Coroutine[Any, Any, T]) -> Awaitable[T]:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, thread.loop))

        call = await on_loop(self._submit(thread.fleet, arguments, turn_id))
        return await _run_async(self._function, arguments, call, on_loop)

    def with_fields(self, **fields: Unpack[TurnFields]) -> Governed[R]:
        """See :meth:`AsyncGoverned.with_fields`."""
        own: TurnFields = {**self._fields, **fields}
        return Governed(self._fleet, self._agent, self._tool, self._function, self._tenant, self._timeout, own)
