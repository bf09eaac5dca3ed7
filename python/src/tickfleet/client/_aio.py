"""A producer's end of a fleet, for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal

from typing_extensions import Unpack

from tickfleet.client._errors import ReplyTimeout, WrongLoop
from tickfleet.client._events import Event
from tickfleet.client._message import ID_BYTES_MAX, TaskFields, TurnFields, name, task_message, turn_message
from tickfleet.client._replies import Replies
from tickfleet.client._reply import Reply
from tickfleet.client._transport import PATIENCE, ApiKey, Awaited, Kind, transport

Format = Literal[
    "openai", "openai_chat", "openai_responses", "anthropic", "gemini", "mcp", "mcp_2026_07_28", "raw", "text"
]
"""What tools are defined for. `openai` is `openai_chat`."""

TIMEOUT = 300.0
"""Seconds that a reply is waited for, where nobody says otherwise."""


def _accepted(reply: Reply | None, id: str, timeout: float | None) -> Reply:
    if reply is None:
        raise ReplyTimeout(id, timeout or 0.0)
    return reply.accepted()


class Submitted:
    """A turn or task that was taken in. As long as it is kept, its reply can be had.

    Attributes:
        id: Its id.
        tenant: Whose it is; empty where a gateway knows it by the key, and nobody said it.
    """

    _kind: Kind = "turn"

    def __init__(self, fleet: AsyncFleet, tenant: str | None, id: str, awaited: Awaited) -> None:
        self.tenant = tenant or ""
        self.id = id
        self._fleet = fleet
        self._awaited = awaited

    @property
    def pending(self) -> list[Reply]:
        """Of a turn with ``pending_approval``: a reply for each call that waits, or has waited, for people's consent.

        Raises:
            Unsupported: The fleet is reached through a gateway.
        """
        return self._awaited.pending

    async def reply(self, timeout: float | None = TIMEOUT) -> Reply:
        """The reply, waited for.

        Raises:
            Rejected, Conflict: It was not carried out.
            ReplyTimeout: It has not ended yet, and the same may be asked again.
        """
        self._fleet.check_loop()
        return _accepted(await self._awaited.reply(timeout), self.id, timeout)

    async def cancel(self, reason: str = "") -> None:
        """Asks for its end. What has begun is never told as not run; the reply comes as usual."""
        await self._fleet.cancel(self.id, task=self._kind == "task", reason=reason, tenant=self.tenant or None)


class SubmittedTask(Submitted):
    """A task that was taken in."""

    _kind = "task"

    async def events(self) -> AsyncGenerator[Event, None]:
        """What happens to the task, from its beginning to its end."""
        async with aclosing(self._fleet.follow(self.id, tenant=self.tenant or None)) as events:
            async for event in events:
                yield event


class AsyncFleet:
    """A producer's end of a fleet: submits turns and tasks, and hands their replies to who waits for them.

    One of them serves a whole process, and belongs to the event loop that uses it first: any other one is refused with
    :class:`WrongLoop`. Close it, or use it in ``async with``.

    Args:
        url: Of the fleet's Redis (``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``, ``redis+cluster://``), or
            of a gateway (``https://``, ``http://``); default the variable ``REDIS_URL``.
        api_key: A gateway's key, or a token of the identity provider that it trusts; or a function that gives one, called
            for each request, where tokens end.
        tenant: Whose turns these are, where a call names no other. A gateway's key is for one tenant, and may stand alone.
        patience: Seconds for which a lost connection, and over HTTP a full queue, is tried again before the error is raised.
        namespace: Redis alone, as all that follow: the fleet's ``redis.namespace``; default ``tickfleet``.
        shards: The fleet's ``redis.shards``; default 1.
        inbox: A name for the inbox of this process, where its user of Redis may only read one. No two processes use the same
            at a time. Default: one of its own, removed on close.
        turns_max, turns_bytes_max: The fleet's ``queues.turns_max`` and ``queues.turns_bytes_max``; default 100,000 and
            256 MiB.

    Raises:
        ValueError: The URL, the key or a number cannot be used.
        Unsupported: An option is for Redis alone.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: ApiKey | None = None,
        tenant: str | None = None,
        patience: float = PATIENCE,
        namespace: str | None = None,
        shards: int | None = None,
        inbox: str | None = None,
        turns_max: int | None = None,
        turns_bytes_max: int | None = None,
    ) -> None:
        place = url or os.environ.get("REDIS_URL") or "redis://127.0.0.1:6379"
        self._transport = transport(
            place,
            api_key,
            patience,
            {
                "namespace": namespace,
                "shards": shards,
                "inbox": inbox,
                "turns_max": turns_max,
                "turns_bytes_max": turns_bytes_max,
            },
        )
        self._tenant = None if tenant is None else name(tenant, "tenant")
        self._loop: asyncio.AbstractEventLoop | None = None

    def check_loop(self) -> None:
        """Refuses every event loop but the one that came first.

        Raises:
            WrongLoop: This is another one.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            ended = "has ended" if self._loop.is_closed() else "is another one"
            raise WrongLoop(
                f"this AsyncFleet belongs to the event loop that used it first, which {ended}: make an AsyncFleet in each "
                "event loop, or use one Fleet, which any number of threads may share"
            )

    async def __aenter__(self) -> AsyncFleet:
        self.check_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what is open, and removes the inboxes that were made for this process.

        Raises:
            WrongLoop: As every method, from another event loop.
        """
        self.check_loop()
        await self._transport.close()

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
            InvalidMessage, QueueFull, Pressure, Throttled: Nothing was sent.
            Unauthorized, Forbidden: The gateway's key is not good, or not for this.
            Rejected, Conflict: It was not carried out.
            ReplyTimeout: It may still be carried out, and be waited for by its id.
            Unavailable: The fleet could not be reached.
        """
        submitted = await self._submit(agent, tenant, fields, True)
        return await submitted.reply(timeout)

    async def submit(self, agent: str, *, tenant: str | None = None, **fields: Unpack[TurnFields]) -> Submitted:
        """Submits a turn; the answer waits for the reply when it is asked to.

        Raises:
            InvalidMessage, QueueFull, Pressure, Throttled, Unauthorized, Forbidden, Unavailable: As :meth:`run`.
            Conflict: The id was used for other content, as far as that is known by now.
            Unsupported: It asks for what a gateway cannot do.
        """
        return await self._submit(agent, tenant, fields, False)

    async def _submit(self, agent: str, tenant: str | None, fields: TurnFields, waits: bool) -> Submitted:
        self.check_loop()
        tenant = self._whose(tenant)
        message = turn_message(tenant, agent, self._transport.inbox, fields)
        is_given = fields.get("turn_id") is not None
        awaited = await self._transport.submit("turn", tenant, message, is_given, waits)
        return Submitted(self, tenant, message["turn_id"], awaited)

    async def send(
        self, agent: str, reply_to: str | None = None, *, tenant: str | None = None, **fields: Unpack[TurnFields]
    ) -> str:
        """Submits a turn whose reply this process does not wait for: it goes to another inbox, or to none. Answers its id.

        Raises:
            InvalidMessage, QueueFull, Pressure, Throttled, Unauthorized, Forbidden, Unavailable: As :meth:`run`.
        """
        self.check_loop()
        tenant = self._whose(tenant)
        message = turn_message(tenant, agent, reply_to, fields)
        await self._transport.send("turn", tenant, message)
        return str(message["turn_id"])

    async def delegate(
        self, agent: str, description: str, *, tenant: str | None = None, **fields: Unpack[TaskFields]
    ) -> SubmittedTask:
        """Delegates a task to an agent, in words.

        Raises:
            InvalidMessage, QueueFull, Pressure, Throttled, Unauthorized, Forbidden, Unavailable, Conflict: As
                :meth:`submit`.
        """
        self.check_loop()
        tenant = self._whose(tenant)
        message = task_message(tenant, agent, description, self._transport.inbox, fields)
        is_given = fields.get("task_id") is not None
        awaited = await self._transport.submit("task", tenant, message, is_given, False)
        return SubmittedTask(self, tenant, message["task_id"], awaited)

    async def wait(self, id: str, *, tenant: str | None = None, timeout: float | None = TIMEOUT) -> Reply:
        """The reply to a turn or task by its id, whoever submitted it, waited for.

        Raises:
            Rejected, Conflict, ReplyTimeout: As :meth:`run`. Records are kept for an hour unless configured: nothing is known
                of what ended before.
        """
        self.check_loop()
        found = await self._transport.wait(self._whose(tenant), name(id, "id", ID_BYTES_MAX), timeout)
        return _accepted(found, id, timeout)

    async def reply(self, id: str, *, tenant: str | None = None) -> Reply | None:
        """The reply as the record of the turn or task keeps it; none where it has not ended, was rejected, or ended longer ago
        than records are kept.

        Raises:
            Unavailable: The fleet could not be reached.
        """
        self.check_loop()
        return await self._transport.reply(self._whose(tenant), name(id, "id", ID_BYTES_MAX))

    def replies(self, inbox: str, *, tenant: str | None = None) -> Replies:
        """Reads an inbox of your own, from the oldest reply that is there: for turns that were sent with its name.

        Raises:
            Unsupported: The fleet is reached through a gateway.
        """
        return self._transport.replies(self._whose(tenant), inbox, self.check_loop)

    async def tools(self, agent: str, *, format: Format = "openai", tenant: str | None = None) -> Any:
        """What a model is told of the tools that the agent may call: a list for its request; for ``text`` a string.

        Raises:
            NoDefinitions: No worker has told.
            Unavailable: The fleet could not be reached.
        """
        self.check_loop()
        dialect = "openai_chat" if format == "openai" else format
        return await self._transport.tools(self._whose(tenant), name(agent, "agent"), dialect)

    async def cancel(self, id: str, *, task: bool = False, reason: str = "", tenant: str | None = None) -> None:
        """Asks for the end of a turn, or with ``task`` of a task. It may come before what it cancels.

        Raises:
            NotFound: A gateway knows nothing of it, or the key is not for its agent.
        """
        self.check_loop()
        kind: Kind = "task" if task else "turn"
        await self._transport.cancel(kind, self._whose(tenant), name(id, f"{kind}_id", ID_BYTES_MAX), reason)

    async def follow(self, task_id: str, *, tenant: str | None = None, position: int = 0) -> AsyncGenerator[Event, None]:
        """What happens to a task, from a position on to its end. The last event is an ``ended``.

        Raises:
            NotFound: A gateway has known nothing of it for as long as there is patience.
        """
        self.check_loop()
        id = name(task_id, "task_id", ID_BYTES_MAX)
        # Whoever stops listening ends the request.
        async with aclosing(self._transport.follow(self._whose(tenant), id, position)) as events:
            async for event in events:
                yield event

    def _whose(self, tenant: str | None) -> str | None:
        return self._transport.whose(tenant if tenant is not None else self._tenant)
