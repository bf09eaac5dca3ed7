"""Transport over Redis, as docs/reference/protocol.md specifies it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from tickfleet.client import _events
from tickfleet.client._definitions import DIALECTS, defined
from tickfleet.client._errors import Conflict, InvalidMessage, NoDefinitions, Unavailable
from tickfleet.client._events import Event
from tickfleet.client._hub import Hub, Waiter
from tickfleet.client._inbox import Inbox
from tickfleet.client._message import asked, name, shard_of, written
from tickfleet.client._redis import Redis
from tickfleet.client._replies import Replies
from tickfleet.client._reply import PendingApproval, Reply, read_record
from tickfleet.client._transport import Claim, DirectOptions, Kind

# Seconds until the first read of a turn's state, if the caller waits for approvals too.
_APPROVAL_SOON = 0.1
# Longest interval between two reads of the state, in seconds.
_APPROVAL_EVERY_MAX = 2.0

# Seconds to wait for the first worker to publish tool lists.
_FIRST_WORKER_S = 5.0

# Seconds between two reads of a tool list.
_LOOK_AGAIN_S = 0.25


def _private() -> str:
    """Returns a unique name for an inbox."""
    host = "".join(c for c in socket.gethostname() if c.isascii() and c.isalnum())[:20]
    return f"py-{host or 'host'}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class _Awaited:
    """Keeps a waiter alive, and with it the search for its reply."""

    def __init__(self, waiter: Waiter, hub: Hub) -> None:
        self._waiter = waiter
        self._hub = hub

    @property
    def pending(self) -> list[Reply]:
        return list(self._waiter.pending)

    async def reply(self, timeout: float | None) -> Reply | None:
        done, _ = await asyncio.wait({self._waiter.reply}, timeout=timeout)
        return self._waiter.reply.result() if done else None

    async def reply_or_approval(self, timeout: float | None) -> Reply | PendingApproval | None:
        end = None if timeout is None else time.monotonic() + timeout
        pause, is_decided = _APPROVAL_SOON, False
        while True:
            left = pause if end is None else min(pause, max(0.0, end - time.monotonic()))
            reply = await self.reply(left)
            if reply is not None:
                return reply
            approval = await self._hub.pending_approval(self._waiter) if is_decided else None
            # If the fleet has rejected the message, the rejection is already in the inbox. The next pass reads it
            # before the state of the turn.
            is_decided = is_decided or await self._hub.is_decided(self._waiter)
            if approval is not None or (end is not None and time.monotonic() >= end):
                return approval
            pause = min(pause * 2, _APPROVAL_EVERY_MAX)


class Direct:
    """Reads replies on one connection for each shard in use, however many callers wait; see
    :mod:`tickfleet.client._hub`."""

    def __init__(self, url: str, retry_timeout: float, options: DirectOptions) -> None:
        self._shards = _or(options.get("shards"), 1)
        if self._shards < 1:
            raise ValueError(f"shards is {self._shards}; expected at least 1")
        inbox = options.get("inbox")
        self._is_private = inbox is None
        self._inbox = _private() if inbox is None else name(inbox, "inbox")
        self._namespace = options.get("namespace") or "tickfleet"
        self._bounds = (_or(options.get("turns_max"), 100_000), _or(options.get("turns_bytes_max"), 256 * 1024 * 1024))
        self._redis = Redis(url, retry_timeout)
        self._hubs: dict[int, Hub] = {}
        self._tenants: set[str] = set()

    @property
    def inbox(self) -> str | None:
        return self._inbox

    def tenant_of(self, tenant: str | None) -> str:
        if tenant is None:
            raise ValueError("no tenant: pass one, or set it when you create the Fleet")
        return name(tenant, "tenant")

    async def close(self) -> None:
        for hub in self._hubs.values():
            await hub.close()
        self._hubs.clear()
        if self._is_private:
            for tenant in self._tenants:
                # An inbox that cannot be removed now expires later.
                with contextlib.suppress(Exception):
                    await self._redis.forget(tenant, self._inbox, self._prefix(tenant))
        self._tenants.clear()
        await self._redis.close()

    async def submit(
        self, kind: Kind, tenant: str | None, message: dict[str, Any], is_given: bool, waits: bool
    ) -> _Awaited:
        tenant, id = self.tenant_of(tenant), message[f"{kind}_id"]
        place, hub = f"{tenant}:{id}", self._hub(tenant)
        there, what = hub.waiter(place), asked(message)
        if there is not None and there.asked != what and there.asked:
            raise Conflict(id, "the id is in use for other content")
        waiter = there or Waiter(place, asked=what, may_have_ended=is_given or not hub.knows(tenant))
        if there is None:
            self._tenants.add(tenant)
            # If the message were sent first, the hub could receive the reply without a waiter.
            hub.add(waiter, f"{tenant}:{self._inbox}")
        waiter.sending = True
        try:
            waiter.sent(f"{self._prefix(tenant)}{kind}s", await self._enqueue(tenant, message, kind, id))
        except BaseException:
            if there is None:
                hub.drop(waiter)
            raise
        return _Awaited(waiter, hub)

    async def send(self, kind: Kind, tenant: str | None, message: dict[str, Any]) -> None:
        await self._enqueue(self.tenant_of(tenant), message, kind, message[f"{kind}_id"])

    async def wait(self, tenant: str | None, id: str, timeout: float | None) -> Reply | None:
        found = await self.reply(tenant, id)
        if found is not None:
            return found
        tenant = self.tenant_of(tenant)
        place, hub = f"{tenant}:{id}", self._hub(tenant)
        waiter = hub.waiter(place)
        if waiter is None:
            waiter = Waiter(place)
            hub.add(waiter, None)
        return await _Awaited(waiter, hub).reply(timeout)

    async def reply(self, tenant: str | None, id: str) -> Reply | None:
        tenant = self.tenant_of(tenant)
        record = await self._redis.get(f"{self._prefix(tenant)}done:{tenant}:{id}")
        return None if record is None else read_record(record)

    async def tools(self, tenant: str | None, agent: str, dialect: str) -> Any:
        tenant = self.tenant_of(tenant)
        if dialect not in DIALECTS:
            raise InvalidMessage(f"format is {dialect!r}; expected one of {', '.join(DIALECTS)}")
        prefix = f"{self._prefix(tenant)}tools:"
        end = time.monotonic() + _FIRST_WORKER_S
        while (found := await self._redis.content(f"{prefix}{tenant}:{agent}")) is None:
            # Workers publish `names` after the tool lists of agents, so no more lists follow.
            if await self._redis.exists(f"{prefix}names") or time.monotonic() >= end:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        # The list may have been written between the last two reads, so it is read once more.
        found = found or await self._redis.content(f"{prefix}{tenant}:{agent}")
        text = None if found is None else await self._redis.content(f"{prefix}=:{json.loads(found)['d']}")
        if text is None:
            raise NoDefinitions(
                f"no tool list for agent {agent} of tenant {tenant}: check the names of tenant and agent, and that a worker "
                "runs. Workers publish tool lists when they start and every five minutes"
            )
        return defined(dialect, json.loads(text))

    async def cancel(self, kind: Kind, tenant: str | None, id: str, reason: str) -> None:
        tenant = self.tenant_of(tenant)
        message = {"op": "cancel", "tenant": tenant, f"{kind}_id": id} | ({"reason": reason} if reason else {})
        await self._redis.add(f"{self._prefix(tenant)}tasks", "task", written(message))

    async def claim(self, tenant: str | None, id: str, claimant: str, wait: int) -> Claim | Reply | None:
        tenant = self.tenant_of(tenant)
        taken = await self._redis.take(f"{self._prefix(tenant)}local:{tenant}:{id}", claimant)
        return None if taken is None else Claim.of(taken[0], json.loads(taken[1]["call"]))

    async def report(self, tenant: str | None, id: str, report: dict[str, Any]) -> None:
        tenant = self.tenant_of(tenant)
        message = report | {"tenant": tenant, "turn_id": id}
        await self._redis.add(f"{self._prefix(tenant)}tasks", "task", written(message))

    def follow(self, tenant: str | None, task_id: str, position: int) -> AsyncGenerator[Event, None]:
        tenant = self.tenant_of(tenant)
        return _events.follow(self._redis, self._prefix(tenant), tenant, task_id, position)

    def replies(self, tenant: str | None, inbox: str, check: Callable[[], None]) -> Replies:
        tenant = self.tenant_of(tenant)
        return Replies(self._redis, Inbox(f"{self._prefix(tenant)}replies:{tenant}:{name(inbox, 'inbox')}"), check)

    async def _enqueue(self, tenant: str, message: dict[str, Any], kind: Kind, id: str) -> str:
        text, prefix = written(message), self._prefix(tenant)
        entries_max, bytes_max = self._bounds
        bounds = (entries_max, bytes_max if kind == "turn" else 0)
        try:
            return await self._redis.enqueue(f"{prefix}{kind}s", f"{prefix}meta", kind, text, bounds)
        except Unavailable as error:
            error.id = id
            raise

    def _prefix(self, tenant: str) -> str:
        return f"{{{self._namespace}:{shard_of(tenant, self._shards)}}}:"

    def _hub(self, tenant: str) -> Hub:
        shard = shard_of(tenant, self._shards)
        if shard not in self._hubs:
            self._hubs[shard] = Hub(self._redis, self._prefix(tenant))
        return self._hubs[shard]


def _or(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given
