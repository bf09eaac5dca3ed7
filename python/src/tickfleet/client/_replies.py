"""A reader of one inbox, on a connection to Redis."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, cast

from tickfleet.client._inbox import BLOCK_MS, Entry, Inbox
from tickfleet.client._reply import Reply, read_reply

if TYPE_CHECKING:
    from tickfleet.client._redis import Redis


class Replies:
    """A reader of one inbox. An inbox has one reader, which removes each returned reply with its next read."""

    def __init__(self, redis: Redis, inbox: Inbox, check: Callable[[], None]) -> None:
        self._check = check
        self._redis = redis
        self._inbox = inbox
        self._unread: list[Entry] = []
        self._handed_out: list[str] = []

    async def next(self, timeout: float | None = None) -> Reply | None:
        """Returns the next reply, or nothing if the time runs out.

        The call removes the previous reply, so that a reader that crashes receives it again. ``reply.missed`` counts
        the missing replies before this one, which are still in the records.

        Raises:
            Unavailable: Redis could not be reached. Call again; no reply is lost.
            FleetError: A reply is unreadable and was skipped.
        """
        self._check()
        end = None if timeout is None else time.monotonic() + timeout
        while not self._unread:
            await self.finish()
            left = BLOCK_MS if end is None else int((end - time.monotonic()) * 1000)
            found = await self._redis.patiently_read(self._inbox, min(left, BLOCK_MS))
            self._unread = self._inbox.fresh(found)
            if not self._unread and end is not None and time.monotonic() >= end:
                return None
        entry = self._unread.pop(0)
        self._handed_out.append(entry.id)
        return read_reply(entry.reply, entry.seq or None, entry.missed)

    async def finish(self) -> None:
        """Removes the returned replies and leaves the rest for another reader."""
        self._check()
        await self._redis.patiently_remove(self._inbox, self._handed_out)
        self._handed_out = []

    def __aiter__(self) -> AsyncIterator[Reply]:
        return self

    async def __anext__(self) -> Reply:
        return cast(Reply, await self.next())
