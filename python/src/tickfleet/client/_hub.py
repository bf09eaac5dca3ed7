"""One reader of replies for a whole process. Waiting callers get their replies from this reader, and make no requests
to Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from tickfleet.client._errors import FleetError
from tickfleet.client._inbox import Entry, Inbox
from tickfleet.client._redis import Redis
from tickfleet.client._reply import UNKNOWN_TENANT, PendingApproval, Reply, absent, read_record, read_reply

log = logging.getLogger("tickfleet.client")

# Seconds until the record of a turn is read for the first time, if no reply has arrived.
_RECORD_AFTER = 1.0
# The same delay for a turn that may already have ended.
_RECORD_SOON = 0.1
# Longest interval between two reads of the record, in seconds.
_RECORD_EVERY_MAX = 10.0
_READS_AT_ONCE = 50
_PAUSE_MAX = 2.0


@dataclass(eq=False)
class Waiter:
    """A caller that waits for one reply."""

    place: str
    """``<tenant>:<id>``."""
    stream: str = ""
    """The stream of the submitted message."""
    entry: str | None = None
    """The stream entry of the message. ``None`` if this process did not submit the message."""
    asked: str = ""
    """The submitted content, which distinguishes another turn with the same id."""
    reply: asyncio.Future[Reply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    may_have_ended: bool = True
    """Whether the record may show the end at once: the caller gave the id, so that the turn may have been submitted
    before, or no tenant of this name has replied to this process."""
    read_at: float = 0.0
    pause: float = 0.0
    pending: list[Reply] = field(default_factory=list)
    """Replies that arrived before the end: one for each approval that the turn waits for."""
    sending: bool = False
    """Whether the message is being sent. A record that exists before the message is sent belongs to another turn."""
    decided: bool = False
    """Whether the entry of the message has left the stream. If the message was rejected, the rejection is then in the
    inbox."""

    def __post_init__(self) -> None:
        self.pause = _RECORD_SOON if self.may_have_ended else _RECORD_AFTER
        self.read_at = time.monotonic() + self.pause

    def sent(self, stream: str, entry: str) -> None:
        """Records that the message is on its stream."""
        self.stream, self.entry, self.decided, self.sending = stream, entry, False, False


class Hub:
    """The inboxes of one shard, read on one connection."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._inboxes: dict[str, Inbox] = {}
        self._tenants: set[str] = set()
        # A caller that stops waiting drops its waiter. The search for the reply then ends.
        self._waiters: WeakValueDictionary[str, Waiter] = WeakValueDictionary()
        self._changed = asyncio.Event()
        self._due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def knows(self, tenant: str) -> bool:
        """Returns whether the tenant exists, as far as replies show."""
        return tenant in self._tenants

    def waiter(self, place: str) -> Waiter | None:
        """Returns the waiter for the reply about this turn or task."""
        return self._waiters.get(place)

    def add(self, waiter: Waiter, inbox: str | None) -> None:
        """Starts to look for the reply, in this inbox (`<tenant>:<name>`) and in the record."""
        self._waiters[waiter.place] = waiter
        self._due.set()
        key = None if inbox is None else f"{self._prefix}replies:{inbox}"
        if key is not None and key not in self._inboxes:
            self._inboxes[key] = Inbox(key)
            self._changed.set()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._always(loop)) for loop in (self._listen, self._read_records)]

    def drop(self, waiter: Waiter) -> None:
        """Stops looking for the reply."""
        if self._waiters.get(waiter.place) is waiter:
            del self._waiters[waiter.place]

    async def close(self) -> None:
        """Stops reading. Callers that still wait get an error."""
        # A library may swallow a cancellation. This flag then ends the loops.
        self._closed = True
        self._changed.set()
        self._due.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for waiter in list(self._waiters.values()):
            if not waiter.reply.done():
                waiter.reply.set_exception(FleetError("the fleet's client was closed", "closed"))
                # Marks the exception as retrieved, in case no caller awaits it.
                waiter.reply.exception()

    async def _always(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Runs a loop despite errors of Redis: connections are restored, and missed replies are in the records."""
        pause = 0.05
        while not self._closed:
            try:
                await loop()
                pause = 0.05
                continue
            except Exception as error:  # Any error, because no other task would continue reading.
                log.warning("failed to read replies; retrying in %.2g s: %s", pause, error)
                self._read_soon()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX)

    async def _listen(self) -> None:
        """Reads all inboxes once. An inbox that is added meanwhile is read at once."""
        self._changed.clear()
        inboxes = list(self._inboxes.values())
        changed = asyncio.create_task(self._changed.wait())
        read = asyncio.create_task(self._redis.read(inboxes)) if inboxes else None
        tasks: set[asyncio.Task[Any]] = {changed} | ({read} if read else set())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if read is not None and read.done():
                for key, entries in read.result().items():
                    inbox = self._inboxes[key]
                    await self._take(inbox, inbox.fresh(entries))
        finally:
            # A canceled read closes its connection. Reads remove nothing, so no reply is lost.
            while tasks:
                for task in tasks:
                    task.cancel()
                # A library may swallow a cancellation that arrives at the wrong moment, so tasks are canceled
                # repeatedly.
                _, tasks = await asyncio.wait(tasks, timeout=0.1)
            if read is not None and not read.cancelled():
                read.exception()

    async def _take(self, inbox: Inbox, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.missed:
                log.warning("%d replies are missing in %s; reading their records", entry.missed, inbox.key)
                self._read_soon()
            try:
                reply = read_reply(entry.reply, entry.seq or None, entry.missed)
            except FleetError as error:
                log.warning("%s %s: %s", inbox.key, entry.id, error)
                continue
            waiter = self._waiters.get(f"{reply.tenant}:{reply.id}")
            if waiter is not None and reply.is_end:
                self._report(waiter, reply)
            elif waiter is not None:
                waiter.pending.append(reply)
        # Removes entries again if an earlier removal failed.
        if inbox.kept:
            await self._redis.remove(inbox, sorted(inbox.kept))

    async def is_decided(self, waiter: Waiter) -> bool:
        """Returns whether the fleet has accepted or rejected this process' own message. A rejection is then in the
        inbox."""
        return not waiter.sending and (waiter.entry is None or not await self._redis.waits(waiter.stream, waiter.entry))

    async def pending_approval(self, waiter: Waiter) -> PendingApproval | None:
        """Returns the approval that the turn waits for. The message must be decided: if it was rejected, the record
        belongs to another turn."""
        return await self._redis.pending_approval(self._prefix, waiter.place)

    def _report(self, waiter: Waiter, reply: Reply) -> None:
        """Delivers the reply, once."""
        self.drop(waiter)
        if reply.error is None or reply.error.code != UNKNOWN_TENANT:
            self._tenants.add(reply.tenant)
        if not waiter.reply.done():
            waiter.reply.set_result(reply)

    def _read_soon(self) -> None:
        for waiter in list(self._waiters.values()):
            waiter.read_at = 0.0
        self._due.set()

    async def _read_records(self) -> None:
        """Reads the records of waiters that have waited for some time, all of them in one task."""
        self._due.clear()
        now = time.monotonic()
        next_at = min((waiter.read_at for waiter in list(self._waiters.values())), default=None)
        if next_at is None or next_at > now:
            # The loop holds no reference to a waiter here, so that an abandoned waiter is freed immediately.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._due.wait(), None if next_at is None else next_at - now)
            return
        due = [waiter for waiter in list(self._waiters.values()) if waiter.read_at <= now][:_READS_AT_ONCE]
        for waiter in due:
            waiter.pause = min(waiter.pause * 2, _RECORD_EVERY_MAX)
            waiter.read_at = now + waiter.pause
        for found in await asyncio.gather(*map(self._read_record, due), return_exceptions=True):
            if isinstance(found, Exception):
                log.warning("a record cannot be read: %s", found)

    async def _read_record(self, waiter: Waiter) -> None:
        """Takes the reply from the record, but only once this process' own message is decided. If that message was
        rejected, the record belongs to another turn."""
        if waiter.sending:
            return
        was_decided = waiter.decided
        if waiter.entry is not None and not was_decided:
            waiter.decided = not await self._redis.waits(waiter.stream, waiter.entry)
        if waiter.entry is None or was_decided:
            record = await self._redis.record(f"{self._prefix}done:{waiter.place}")
            reply = None if record is None else read_record(record)
            if reply is None and record is None and await self._redis.is_absent(self._prefix, waiter.place):
                reply = absent(waiter.place, "task" if waiter.stream.endswith("tasks") else "turn")
            if reply is not None:
                self._report(waiter, reply)
        elif waiter.decided:
            # If the message was rejected, the hub reads the rejection from the inbox before the next check.
            waiter.read_at = time.monotonic() + _RECORD_SOON
