"""The blocking client: one thread of the process runs an :class:`AsyncFleet`, and all other threads wait for it."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import Unpack

from tickfleet.client._aio import TIMEOUT, AsyncFleet, Submitted, SubmittedTask
from tickfleet.client._definitions import Format
from tickfleet.client._errors import FleetError
from tickfleet.client._events import Event
from tickfleet.client._governed import Governed
from tickfleet.client._message import TaskFields, TurnFields
from tickfleet.client._replies import Replies
from tickfleet.client._reply import PendingApproval, Reply
from tickfleet.client._transport import FleetOptions

T = TypeVar("T")

# An ending process waits this long until its inboxes are removed.
_CLOSING_S = 2.0


class _Thread:
    """An event loop in its own thread, and the client in it."""

    def __init__(self, url: str | None, options: FleetOptions) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="tickfleet", daemon=True)
        self.thread.start()
        try:
            self.fleet = self.run(self._make(url, options))
        except BaseException:
            self._end()
            raise

    @staticmethod
    async def _make(url: str | None, options: FleetOptions) -> AsyncFleet:
        return AsyncFleet(url, **options)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        if not self.thread.is_alive():
            work.close()
            raise FleetError("the fleet's client was closed", "closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except BaseException:
            # The caller no longer waits for the result, for example after Ctrl-C.
            future.cancel()
            raise

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work without waiting for it. An unreferenced generator may be collected in the loop's own thread, where
        a wait would block."""
        if self.thread.is_alive():
            asyncio.run_coroutine_threadsafe(work, self.loop)
        else:
            work.close()

    def close(self) -> None:
        # After a fork, the thread and its connections belong to the parent process.
        if self.pid != os.getpid() or not self.thread.is_alive():
            return
        try:
            self.run(self.fleet.close(), _CLOSING_S)
        finally:
            self._end()

    def _end(self) -> None:
        def end() -> None:
            # Threads that wait for these tasks get a CancelledError.
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_later(0.05, self.loop.stop)

        self.loop.call_soon_threadsafe(end)
        self.thread.join(_CLOSING_S)
        if not self.thread.is_alive():
            self.loop.close()


class Fleet:
    """A blocking client that submits turns and tasks to a fleet. The arguments are those of :class:`AsyncFleet`.

    Any number of threads can share a client, and a forked process reconnects. Close it, or use it in ``with``.
    """

    def __init__(self, url: str | None = None, **options: Unpack[FleetOptions]) -> None:
        self._url, self._options = url, options
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        self._closed = False
        # Invalid arguments raise an error here and not at the first use.
        self._running()

    def _running(self) -> _Thread:
        with self._lock:
            if self._closed:
                raise FleetError("the fleet's client was closed", "closed")
            if self._thread is None or self._thread.pid != os.getpid():
                self._thread = _Thread(self._url, self._options)
                weakref.finalize(self, _quietly, self._thread)
            return self._thread

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and removes the inboxes of this process."""
        with self._lock:
            thread, self._thread, self._closed = self._thread, None, True
        if thread is not None:
            thread.close()

    def run(
        self,
        agent: str,
        *,
        tenant: str | None = None,
        timeout: float | None = TIMEOUT,
        **fields: Unpack[TurnFields],
    ) -> Reply:
        """See :meth:`AsyncFleet.run`."""
        thread = self._running()
        return thread.run(thread.fleet.run(agent, tenant=tenant, timeout=timeout, **fields))

    def submit(self, agent: str, *, tenant: str | None = None, **fields: Unpack[TurnFields]) -> SyncSubmitted:
        """See :meth:`AsyncFleet.submit`."""
        thread = self._running()
        return SyncSubmitted(self, thread, thread.run(thread.fleet.submit(agent, tenant=tenant, **fields)))

    def governed(
        self,
        *,
        agent: str,
        tool: str | None = None,
        tenant: str | None = None,
        timeout: float | None = TIMEOUT,
        **fields: Unpack[TurnFields],
    ) -> Callable[[Callable[..., Any]], Governed[Any]]:
        """See :meth:`AsyncFleet.governed`. The function runs in the thread of its caller. A coroutine function stays one."""

        def decorate(function: Callable[..., Any]) -> Governed[Any]:
            return Governed(self, agent, tool, function, tenant, timeout, fields)

        return decorate

    def send(
        self, agent: str, reply_to: str | None = None, *, tenant: str | None = None, **fields: Unpack[TurnFields]
    ) -> str:
        """See :meth:`AsyncFleet.send`."""
        thread = self._running()
        return thread.run(thread.fleet.send(agent, reply_to, tenant=tenant, **fields))

    def delegate(
        self, agent: str, description: str, *, tenant: str | None = None, **fields: Unpack[TaskFields]
    ) -> SyncTask:
        """See :meth:`AsyncFleet.delegate`."""
        thread = self._running()
        return SyncTask(self, thread, thread.run(thread.fleet.delegate(agent, description, tenant=tenant, **fields)))

    def wait(self, id: str, *, tenant: str | None = None, timeout: float | None = TIMEOUT) -> Reply:
        """See :meth:`AsyncFleet.wait`."""
        thread = self._running()
        return thread.run(thread.fleet.wait(id, tenant=tenant, timeout=timeout))

    def reply(self, id: str, *, tenant: str | None = None) -> Reply | None:
        """See :meth:`AsyncFleet.reply`."""
        thread = self._running()
        return thread.run(thread.fleet.reply(id, tenant=tenant))

    def replies(self, inbox: str, *, tenant: str | None = None) -> SyncReplies:
        """See :meth:`AsyncFleet.replies`."""
        thread = self._running()
        return SyncReplies(self, thread, thread.fleet.replies(inbox, tenant=tenant))

    def tools(self, agent: str, *, format: Format = "openai", tenant: str | None = None) -> Any:
        """See :meth:`AsyncFleet.tools`."""
        thread = self._running()
        return thread.run(thread.fleet.tools(agent, format=format, tenant=tenant))

    def cancel(self, id: str, *, task: bool = False, reason: str = "", tenant: str | None = None) -> None:
        """See :meth:`AsyncFleet.cancel`."""
        thread = self._running()
        thread.run(thread.fleet.cancel(id, task=task, reason=reason, tenant=tenant))

    def follow(self, task_id: str, *, tenant: str | None = None, position: int = 0) -> Iterator[Event]:
        """See :meth:`AsyncFleet.follow`."""
        thread = self._running()
        return _each(self, thread, thread.fleet.follow(task_id, tenant=tenant, position=position))


class SyncSubmitted:
    """A submitted turn or task. While the object exists, the client keeps its reply."""

    def __init__(self, fleet: Fleet, thread: _Thread, submitted: Submitted) -> None:
        # Keeps the fleet, because a fleet without references is closed.
        self._fleet = fleet
        self._thread = thread
        self._submitted = submitted
        self.id = submitted.id
        self.tenant = submitted.tenant

    @property
    def pending(self) -> list[Reply]:
        """See :attr:`Submitted.pending`."""
        return self._submitted.pending

    def reply(self, timeout: float | None = TIMEOUT) -> Reply:
        """See :meth:`Submitted.reply`."""
        return self._thread.run(self._submitted.reply(timeout))

    def reply_or_approval(self, timeout: float | None = TIMEOUT) -> Reply | PendingApproval:
        """See :meth:`Submitted.reply_or_approval`."""
        return self._thread.run(self._submitted.reply_or_approval(timeout))

    def cancel(self, reason: str = "") -> None:
        """See :meth:`Submitted.cancel`."""
        self._thread.run(self._submitted.cancel(reason))


class SyncTask(SyncSubmitted):
    """A submitted task."""

    def __init__(self, fleet: Fleet, thread: _Thread, submitted: SubmittedTask) -> None:
        super().__init__(fleet, thread, submitted)
        self._task = submitted

    def events(self) -> Iterator[Event]:
        """See :meth:`SubmittedTask.events`."""
        return _each(self._fleet, self._thread, self._task.events())


class SyncReplies:
    """See :class:`Replies`."""

    def __init__(self, fleet: Fleet, thread: _Thread, replies: Replies) -> None:
        self._fleet = fleet
        self._thread = thread
        self._replies = replies

    def next(self, timeout: float | None = None) -> Reply | None:
        """See :meth:`Replies.next`."""
        return self._thread.run(self._replies.next(timeout))

    def finish(self) -> None:
        """See :meth:`Replies.finish`."""
        self._thread.run(self._replies.finish())

    def __iter__(self) -> Iterator[Reply]:
        while True:
            reply = self.next()
            if reply is not None:
                yield reply


def _each(fleet: Fleet, thread: _Thread, events: AsyncGenerator[Event, None]) -> Iterator[Event]:
    """Yields the events one at a time until the caller stops. Keeps the fleet alive meanwhile."""

    async def one() -> Event | None:
        return await anext(events, None)

    try:
        while (event := thread.run(one())) is not None:
            yield event
    finally:
        thread.leave(events.aclose())


def _quietly(thread: _Thread) -> None:
    """Closes a client that its owner did not close. Inboxes that cannot be removed expire."""
    try:
        thread.close()
    except Exception:
        pass
