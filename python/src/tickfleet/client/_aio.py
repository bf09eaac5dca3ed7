"""A producer's end of a fleet, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Literal, cast

from typing_extensions import TypedDict, Unpack

from tickfleet.client import _events
from tickfleet.client._errors import Conflict, FleetError, NoDefinitions, ReplyTimeout, Unavailable
from tickfleet.client._events import Event
from tickfleet.client._hub import Hub, Waiter
from tickfleet.client._inbox import Entry, Inbox
from tickfleet.client._message import (
    ID_BYTES_MAX,
    TaskFields,
    TurnFields,
    asked,
    name,
    shard_of,
    task_message,
    turn_message,
    written,
)
from tickfleet.client._redis import BLOCK_MS, Redis
from tickfleet.client._reply import Reply, read_record, read_reply

Format = Literal[
    "openai", "openai_chat", "openai_responses", "anthropic", "gemini", "mcp", "mcp_2026_07_28", "raw", "text"
]
"""What tools are defined for. `openai` is `openai_chat`."""

TIMEOUT = 300.0
"""Seconds that a reply is waited for, where nobody says otherwise."""


class FleetOptions(TypedDict, total=False):
    """The arguments of :class:`AsyncFleet` beside the URL."""

    tenant: str | None
    namespace: str
    shards: int
    inbox: str | None
    patience: float
    turns_max: int
    turns_bytes_max: int


def _private() -> str:
    """An inbox that nobody else uses."""
    host = "".join(c for c in socket.gethostname() if c.isascii() and c.isalnum())[:20]
    return f"py-{host or 'host'}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class Submitted:
    """A turn or task that was taken in. As long as it is kept, its reply is looked out for."""

    _kind: Literal["turn_id", "task_id"] = "turn_id"

    def __init__(self, fleet: AsyncFleet, tenant: str, id: str, waiter: Waiter) -> None:
        self.tenant = tenant
        self.id = id
        self._fleet = fleet
        self._waiter = waiter

    @property
    def pending(self) -> list[Reply]:
        """Of a turn with ``pending_approval``: a reply for each call that waits, or has waited, for people's consent."""
        return list(self._waiter.pending)

    async def reply(self, timeout: float | None = TIMEOUT) -> Reply:
        """The reply, waited for.

        Raises:
            Rejected, Conflict: It was not carried out.
            ReplyTimeout: It has not ended yet; the same may be asked again.
        """
        done, _ = await asyncio.wait({self._waiter.reply}, timeout=timeout)
        if not done:
            raise ReplyTimeout(self.id, timeout or 0.0)
        return self._waiter.reply.result().accepted()

    async def cancel(self, reason: str = "") -> None:
        """Asks for its end. What has begun is never told as not run; the reply comes as usual."""
        await self._fleet._cancel(self.tenant, self._kind, self.id, reason)


class SubmittedTask(Submitted):
    """A task that was taken in."""

    _kind = "task_id"

    async def events(self) -> AsyncIterator[Event]:
        """What happens to the task, from its beginning to its end."""
        async for event in self._fleet.follow(self.id, tenant=self.tenant):
            yield event


class AsyncFleet:
    """A producer's end of a fleet: submits turns and tasks, and hands their replies to who waits for them.

    One of them serves a whole process, and belongs to one event loop. It has one connection that reads replies for each shard
    in use, however many wait. Close it, or use it in ``async with``.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` or ``redis+cluster://``; default the variable
            ``REDIS_URL``.
        tenant: Whose turns these are, where a call names no other.
        namespace: The fleet's ``redis.namespace``.
        shards: The fleet's ``redis.shards``.
        inbox: A name for the inbox of this process, where its user of Redis may only read one. No two processes use the same
            at a time. Default: one of its own, removed on close.
        patience: Seconds for which a lost connection is tried again before `Unavailable` is raised.
        turns_max, turns_bytes_max: The fleet's ``queues.turns_max`` and ``queues.turns_bytes_max``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str | None = None,
        namespace: str = "tickfleet",
        shards: int = 1,
        inbox: str | None = None,
        patience: float = 10.0,
        turns_max: int = 100_000,
        turns_bytes_max: int = 256 * 1024 * 1024,
    ) -> None:
        if shards < 1:
            raise ValueError(f"shards is {shards}; expected at least 1")
        self._redis = Redis(url or os.environ.get("REDIS_URL") or "redis://127.0.0.1:6379", patience)
        self._tenant = None if tenant is None else name(tenant, "tenant")
        self._namespace = namespace
        self._shards = shards
        self._is_private = inbox is None
        self._inbox = _private() if inbox is None else name(inbox, "inbox")
        self._bounds = (turns_max, turns_bytes_max)
        self._hubs: dict[int, Hub] = {}
        self._tenants: set[str] = set()
        self._checked: set[int] = set()

    async def __aenter__(self) -> AsyncFleet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops reading, and removes the inboxes that were made for this process."""
        for hub in self._hubs.values():
            await hub.close()
        self._hubs.clear()
        if self._is_private:
            for tenant in self._tenants:
                # What cannot be removed now ages away.
                with contextlib.suppress(Exception):
                    await self._redis.forget(tenant, self._inbox, self._prefix(tenant))
        self._tenants.clear()
        await self._redis.close()

    async def run(
        self,
        agent: str,
        *,
        tenant: str | None = None,
        timeout: float | None = TIMEOUT,
        **fields: Unpack[TurnFields],
    ) -> Reply:
        """Has the calls of one model response carried out, and waits for their results.

        ``reply.messages`` are ready to be appended to the conversation. A call that failed, was denied or capped is a result
        like any other: the model reads why.

        Args:
            agent: Who makes the calls.
            tenant: Whose turn it is; default the fleet's tenant.
            timeout: Seconds to wait; ``None`` for as long as it takes. A turn may wait for its agent's next tick.
            **fields: The calls, and the other fields of a turn.

        Raises:
            InvalidMessage, QueueFull, Pressure: Nothing was sent.
            Rejected, Conflict: It was not carried out.
            ReplyTimeout: It goes on, and may be waited for by its id.
            Unavailable: Redis could not be reached.
        """
        submitted = await self.submit(agent, tenant=tenant, **fields)
        return await submitted.reply(timeout)

    async def submit(self, agent: str, *, tenant: str | None = None, **fields: Unpack[TurnFields]) -> Submitted:
        """Submits a turn; the answer waits for the reply when it is asked to.

        Raises:
            InvalidMessage, QueueFull, Pressure, Unavailable: As :meth:`run`.
            Conflict: This process waits for the reply to a turn of this id with other content.
        """
        tenant = self._whose(tenant)
        message = turn_message(tenant, agent, self._inbox, fields)
        waiter = await self._send(tenant, message, "turn", fields.get("turn_id"))
        return Submitted(self, tenant, message["turn_id"], waiter)

    async def send(
        self, agent: str, reply_to: str | None = None, *, tenant: str | None = None, **fields: Unpack[TurnFields]
    ) -> str:
        """Submits a turn whose reply this process does not wait for: it goes to another inbox, or to none. Answers its id.

        Raises:
            InvalidMessage, QueueFull, Pressure, Unavailable: As :meth:`run`.
        """
        tenant = self._whose(tenant)
        message = turn_message(tenant, agent, reply_to, fields)
        await self._enqueue(tenant, message, "turn", message["turn_id"])
        return str(message["turn_id"])

    async def delegate(
        self, agent: str, description: str, *, tenant: str | None = None, **fields: Unpack[TaskFields]
    ) -> SubmittedTask:
        """Delegates a task to an agent, in words.

        Raises:
            InvalidMessage, QueueFull, Pressure, Unavailable, Conflict: As :meth:`submit`.
        """
        tenant = self._whose(tenant)
        message = task_message(tenant, agent, description, self._inbox, fields)
        waiter = await self._send(tenant, message, "task", fields.get("task_id"))
        return SubmittedTask(self, tenant, message["task_id"], waiter)

    async def wait(self, id: str, *, tenant: str | None = None, timeout: float | None = TIMEOUT) -> Reply:
        """The reply to a turn or task by its id, whoever submitted it, waited for.

        Raises:
            Rejected, Conflict, ReplyTimeout: As :meth:`run`. Records are kept for an hour unless configured: nothing is known
                of what ended before.
        """
        tenant, place = self._whose(tenant), f"{self._whose(tenant)}:{name(id, 'id', ID_BYTES_MAX)}"
        found = await self.reply(id, tenant=tenant)
        if found is not None:
            return found.accepted()
        hub = self._hub(tenant)
        waiter = hub.waiter(place)
        if waiter is None:
            waiter = Waiter(place)
            hub.add(waiter, None)
        done, _ = await asyncio.wait({waiter.reply}, timeout=timeout)
        if not done:
            raise ReplyTimeout(id, timeout or 0.0)
        return waiter.reply.result().accepted()

    async def reply(self, id: str, *, tenant: str | None = None) -> Reply | None:
        """The reply as the record of the turn or task keeps it; none where it has not ended, was rejected, or ended longer ago
        than records are kept.

        Raises:
            Unavailable: Redis could not be reached.
        """
        tenant = self._whose(tenant)
        record = await self._redis.get(f"{self._prefix(tenant)}done:{tenant}:{name(id, 'id', ID_BYTES_MAX)}")
        return None if record is None else read_record(record)

    def replies(self, inbox: str, *, tenant: str | None = None) -> Replies:
        """Reads an inbox of your own, from the oldest reply that is there: for turns that were sent with its name."""
        tenant = self._whose(tenant)
        return Replies(self._redis, Inbox(f"{self._prefix(tenant)}replies:{tenant}:{name(inbox, 'inbox')}"))

    async def tools(self, agent: str, *, format: Format = "openai", tenant: str | None = None) -> Any:
        """What a model is told of the tools that the agent may call: a list for its request; for ``text`` a string.

        Raises:
            NoDefinitions: No worker has told.
            Unavailable: Redis could not be reached.
        """
        tenant, dialect = self._whose(tenant), "openai_chat" if format == "openai" else format
        text = await self._redis.get(f"{self._prefix(tenant)}tools:{tenant}:{name(agent, 'agent')}:{dialect}")
        if text is None:
            raise NoDefinitions(
                f"no definitions of tools for agent {agent} of tenant {tenant} in {dialect}: is the agent configured, and "
                "does a worker run? Workers write them when they start and every minute"
            )
        return json.loads(text)

    async def cancel(self, id: str, *, task: bool = False, reason: str = "", tenant: str | None = None) -> None:
        """Asks for the end of a turn, or with ``task`` of a task. It may come before what it cancels."""
        await self._cancel(self._whose(tenant), "task_id" if task else "turn_id", id, reason)

    async def follow(self, task_id: str, *, tenant: str | None = None, position: int = 0) -> AsyncIterator[Event]:
        """What happens to a task, from a position on to its end. The last event is an ``ended``."""
        tenant = self._whose(tenant)
        async for event in _events.follow(self._redis, self._prefix(tenant), tenant, task_id, position):
            yield event

    async def _cancel(self, tenant: str, kind: Literal["turn_id", "task_id"], id: str, reason: str) -> None:
        message = {"op": "cancel", "tenant": tenant, kind: name(id, kind, ID_BYTES_MAX)}
        text = written(message | ({"reason": reason} if reason else {}))
        await self._redis.add(f"{self._prefix(tenant)}tasks", "task", text)

    async def _send(self, tenant: str, message: dict[str, Any], kind: Literal["turn", "task"], given: str | None) -> Waiter:
        id: str = message[f"{kind}_id"]
        place, hub = f"{tenant}:{id}", self._hub(tenant)
        there, what = hub.waiter(place), asked(message)
        if there is not None and there.asked != what and there.asked:
            raise Conflict(id, f"the id {id} is in use for other content")
        waiter = there or Waiter(place, asked=what, is_given=given is not None)
        if there is None:
            self._tenants.add(tenant)
            # Before the message: no reply can slip in between.
            hub.add(waiter, f"{tenant}:{self._inbox}")
        waiter.sending = True
        try:
            waiter.sent(f"{self._prefix(tenant)}{kind}s", await self._enqueue(tenant, message, kind, id))
        except BaseException:
            if there is None:
                hub.drop(waiter)
            raise
        return waiter

    async def _enqueue(self, tenant: str, message: dict[str, Any], kind: Literal["turn", "task"], id: str) -> str:
        text, prefix = written(message), self._prefix(tenant)
        entries_max, bytes_max = self._bounds
        bounds = (entries_max, bytes_max if kind == "turn" else 0)
        try:
            return await self._redis.enqueue(f"{prefix}{kind}s", f"{prefix}meta", kind, text, bounds)
        except Unavailable as error:
            error.id = id
            raise

    def _whose(self, tenant: str | None) -> str:
        chosen = tenant if tenant is not None else self._tenant
        if chosen is None:
            raise ValueError("name a tenant, here or when the fleet is made")
        return name(chosen, "tenant")

    def _prefix(self, tenant: str) -> str:
        return f"{{{self._namespace}:{shard_of(tenant, self._shards)}}}:"

    def _hub(self, tenant: str) -> Hub:
        shard = shard_of(tenant, self._shards)
        if shard not in self._hubs:
            self._hubs[shard] = Hub(self._redis, self._prefix(tenant))
        return self._hubs[shard]


class Replies:
    """A reader of one inbox. An inbox has one reader: what it has handed out, it removes with its next read."""

    def __init__(self, redis: Redis, inbox: Inbox) -> None:
        self._redis = redis
        self._inbox = inbox
        self._unread: list[Entry] = []
        self._handed_out: list[str] = []

    async def next(self, timeout: float | None = None) -> Reply | None:
        """The next reply; none where none came in time.

        The reply that was handed out before is removed now: whoever crashes while it works on a reply finds it again.
        ``reply.missed`` counts what is missing before it; what it said is in the records.

        Raises:
            Unavailable: Redis could not be reached; ask again, nothing is lost.
            FleetError: A reply cannot be read. It is skipped.
        """
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
        """Removes what was handed out, and leaves the rest for another reader."""
        await self._redis.patiently_remove(self._inbox, self._handed_out)
        self._handed_out = []

    def __aiter__(self) -> AsyncIterator[Reply]:
        return self

    async def __anext__(self) -> Reply:
        return cast(Reply, await self.next())
