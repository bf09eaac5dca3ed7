"""The asyncio client for producers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any

from typing_extensions import Unpack

from tickfleet.client._definitions import Format
from tickfleet.client._errors import ReplyTimeout, WrongLoop
from tickfleet.client._events import Event
from tickfleet.client._governed import AsyncGoverned
from tickfleet.client._message import ID_BYTES_MAX, TaskFields, TurnFields, name, task_message, turn_message
from tickfleet.client._place import place
from tickfleet.client._replies import Replies
from tickfleet.client._reply import PendingApproval, Reply
from tickfleet.client._transport import RETRY_TIMEOUT, ApiKey, Awaited, Kind, transport

TIMEOUT = 300.0
"""Default timeout of a reply, in seconds."""


def _accepted(reply: Reply | None, tenant: str | None, id: str, timeout: float | None) -> Reply:
    if reply is None:
        raise ReplyTimeout(id, timeout or 0.0, tenant)
    return reply.accepted()


class Submitted:
    """A submitted turn or task. While the object exists, the client keeps its reply.

    Attributes:
        id: Its id.
        tenant: Tenant. Empty if a gateway derives it from the key.
    """

    _kind: Kind = "turn"

    def __init__(self, fleet: AsyncFleet, tenant: str | None, id: str, awaited: Awaited) -> None:
        self.tenant = tenant or ""
        self.id = id
        self._fleet = fleet
        self._awaited = awaited

    @property
    def pending(self) -> list[Reply]:
        """One reply for each call that waits or waited for approval, if the turn has ``pending_approval``.

        Raises:
            Unsupported: The client uses a gateway.
        """
        return self._awaited.pending

    async def reply(self, timeout: float | None = TIMEOUT) -> Reply:
        """Waits for the reply.

        Raises:
            Rejected, Conflict: The turn or task was not executed.
            ReplyTimeout: The turn or task is unfinished; call again.
        """
        self._fleet.check_loop()
        return _accepted(await self._awaited.reply(timeout), self.tenant, self.id, timeout)

    async def reply_or_approval(self, timeout: float | None = TIMEOUT) -> Reply | PendingApproval:
        """Waits for the reply, or until a call of the turn waits for an approval.

        Over Redis, the client polls the turn at least every 2 seconds. If the Redis user may not read turns, or the API
        key lacks ``read``, the client only waits for the reply.

        Raises:
            Rejected, Conflict, ReplyTimeout: As :meth:`reply`.
        """
        self._fleet.check_loop()
        found = await self._awaited.reply_or_approval(timeout)
        return found if isinstance(found, PendingApproval) else _accepted(found, self.tenant, self.id, timeout)

    async def cancel(self, reason: str = "") -> None:
        """Cancels the turn or task. The reply arrives as usual.

        A running call is stopped, and a ``once`` call then ends as ``outcome_unknown``.
        """
        await self._fleet.cancel(self.id, task=self._kind == "task", reason=reason, tenant=self.tenant or None)


class SubmittedTask(Submitted):
    """A submitted task."""

    _kind = "task"

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields the events of the task from its start to its end."""
        async with aclosing(self._fleet.follow(self.id, tenant=self.tenant or None)) as events:
            async for event in events:
                yield event


class AsyncFleet:
    """A client that submits turns and tasks to a fleet and receives their replies.

    One client serves a whole process and belongs to the first event loop that uses it; another loop raises
    :class:`WrongLoop`. Close it, or use it in ``async with``.

    Args:
        url: URL of Redis (``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``, ``redis+cluster://``) or
            of a gateway (``https://``, ``http://``). Default: the variable ``REDIS_URL``, or ``FLEET_URL`` with
            ``FLEET_KEY``, or the ``tickfleet dev`` that runs in the working folder.
        api_key: API key of a gateway, or token of its identity provider, or a function that returns one and is
            called for each request.
        tenant: Default tenant of turns and tasks. Optional with a gateway, whose key has a tenant.
        retry_timeout: Seconds of retries after a lost connection, or over HTTP a full queue, before the error is raised.
        namespace: ``redis.namespace`` of the fleet. Only with Redis, as all parameters that follow. Default:
            ``tickfleet``.
        shards: ``redis.shards`` of the fleet. Default: 1.
        inbox: Name of the inbox of this process, if its Redis user can read only one. Two processes must not share a
            name. Default: a private inbox that is removed on close.
        turns_max, turns_bytes_max: ``queues.turns_max`` and ``queues.turns_bytes_max`` of the fleet. Default:
            100,000 and 256 MiB.

    Raises:
        ValueError: The URL, the key or a number is invalid.
        Unsupported: An option works only with Redis.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: ApiKey | None = None,
        tenant: str | None = None,
        retry_timeout: float = RETRY_TIMEOUT,
        namespace: str | None = None,
        shards: int | None = None,
        inbox: str | None = None,
        turns_max: int | None = None,
        turns_bytes_max: int | None = None,
    ) -> None:
        found, key = place(url, api_key)
        self._transport = transport(
            found,
            key,
            retry_timeout,
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
        """Raises an error in every event loop except the first.

        Raises:
            WrongLoop: The event loop is a different one.
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
        """Closes the connections and removes the inboxes of this process.

        Raises:
            WrongLoop: The event loop is a different one, as for every method.
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
        """Submits the calls of one model response and waits for their results.

        ``reply.messages`` are ready to append to the conversation. A call that failed, was denied or capped has a
        result too, and the model reads the reason.

        Args:
            agent: Agent that makes the calls.
            tenant: Tenant. Default: the client's tenant.
            timeout: Seconds to wait; ``None`` waits without limit. A turn can wait for its agent's next tick.
            **fields: The calls, and further fields of the turn.

        Raises:
            InvalidMessage, QueueFull, MemoryPressure, Throttled: Nothing was sent.
            Unauthorized, Forbidden: The API key is invalid or lacks the permission.
            Rejected, Conflict: The turn or task was not executed.
            ReplyTimeout: The turn or task can still run; wait for it by its id.
            Unavailable: The fleet could not be reached.
        """
        submitted = await self._submit(agent, tenant, fields, True)
        return await submitted.reply(timeout)

    async def submit(self, agent: str, *, tenant: str | None = None, **fields: Unpack[TurnFields]) -> Submitted:
        """Submits a turn. The returned object waits for the reply on request.

        Raises:
            InvalidMessage, QueueFull, MemoryPressure, Throttled, Unauthorized, Forbidden, Unavailable: As :meth:`run`.
            Conflict: The id belongs to a turn with different content, if that is already known.
            Unsupported: A field does not work through a gateway.
        """
        return await self._submit(agent, tenant, fields, False)

    async def _submit(self, agent: str, tenant: str | None, fields: TurnFields, waits: bool) -> Submitted:
        self.check_loop()
        tenant = self._tenant_of(tenant)
        message = turn_message(tenant, agent, self._transport.inbox, fields)
        is_given = fields.get("turn_id") is not None
        awaited = await self._transport.submit("turn", tenant, message, is_given, waits)
        return Submitted(self, tenant, message["turn_id"], awaited)

    def governed(
        self,
        *,
        agent: str,
        tool: str | None = None,
        tenant: str | None = None,
        timeout: float | None = TIMEOUT,
        **fields: Unpack[TurnFields],
    ) -> Callable[[Callable[..., Any]], AsyncGoverned[Any]]:
        """Decorates a function that stays in this process: each call is a call of a local tool (``local: {}`` in
        ``tools.yaml``), and the function runs only if the fleet allows it.

        The decorated function is a coroutine function. A function that is no coroutine function runs in a thread.

        Args:
            agent: Agent that makes the calls.
            tool: Name of the tool. Default: the function's name.
            tenant: Tenant. Default: the client's tenant.
            timeout: Seconds to wait for the permission to run, for example for an approval, and for the result.
            **fields: Further fields of each turn, such as ``deadline`` or ``user_context``.

        Raises:
            InvalidMessage: A parameter of the function has no fixed name.
        """

        def decorate(function: Callable[..., Any]) -> AsyncGoverned[Any]:
            return AsyncGoverned(self, agent, tool, function, tenant, timeout, fields)

        return decorate

    async def send(
        self, agent: str, reply_to: str | None = None, *, tenant: str | None = None, **fields: Unpack[TurnFields]
    ) -> str:
        """Submits a turn whose reply goes to another inbox, or to none. Returns the turn's id.

        Raises:
            InvalidMessage, QueueFull, MemoryPressure, Throttled, Unauthorized, Forbidden, Unavailable: As :meth:`run`.
        """
        self.check_loop()
        tenant = self._tenant_of(tenant)
        message = turn_message(tenant, agent, reply_to, fields)
        await self._transport.send("turn", tenant, message)
        return str(message["turn_id"])

    async def delegate(
        self, agent: str, description: str, *, tenant: str | None = None, **fields: Unpack[TaskFields]
    ) -> SubmittedTask:
        """Delegates a task to an agent.

        Raises:
            InvalidMessage, QueueFull, MemoryPressure, Throttled, Unauthorized, Forbidden, Unavailable, Conflict: As
                :meth:`submit`.
        """
        self.check_loop()
        tenant = self._tenant_of(tenant)
        message = task_message(tenant, agent, description, self._transport.inbox, fields)
        is_given = fields.get("task_id") is not None
        awaited = await self._transport.submit("task", tenant, message, is_given, False)
        return SubmittedTask(self, tenant, message["task_id"], awaited)

    async def wait(self, id: str, *, tenant: str | None = None, timeout: float | None = TIMEOUT) -> Reply:
        """Waits for the reply to a turn or task by its id. Any client can have submitted it.

        Raises:
            Rejected, Conflict, ReplyTimeout: As :meth:`run`. Records are kept for ``retention.records``, one hour by
                default.
        """
        self.check_loop()
        tenant = self._tenant_of(tenant)
        found = await self._transport.wait(tenant, name(id, "id", ID_BYTES_MAX), timeout)
        return _accepted(found, tenant, id, timeout)

    async def reply(self, id: str, *, tenant: str | None = None) -> Reply | None:
        """Returns the stored reply, or nothing if the turn or task is unfinished, was rejected, or ended longer ago than
        ``retention.records``.

        Raises:
            Unavailable: The fleet could not be reached.
        """
        self.check_loop()
        return await self._transport.reply(self._tenant_of(tenant), name(id, "id", ID_BYTES_MAX))

    def replies(self, inbox: str, *, tenant: str | None = None) -> Replies:
        """Reads an inbox from its oldest reply, for turns that were sent with its name.

        Raises:
            Unsupported: The client uses a gateway.
        """
        return self._transport.replies(self._tenant_of(tenant), inbox, self.check_loop)

    async def tools(self, agent: str, *, format: Format = "openai", tenant: str | None = None) -> Any:
        """Returns the tool definitions of the agent for a model request: a list, or for ``text`` a string.

        While no worker has published tool lists, the call waits for the first worker, at most 5 s.

        Raises:
            NoDefinitions: No worker has published a tool list for the agent.
            InvalidMessage: The format is unknown.
            Unavailable: The fleet could not be reached.
        """
        self.check_loop()
        dialect = "openai_chat" if format == "openai" else format
        return await self._transport.tools(self._tenant_of(tenant), name(agent, "agent"), dialect)

    async def cancel(self, id: str, *, task: bool = False, reason: str = "", tenant: str | None = None) -> None:
        """Cancels a turn, or with ``task`` a task. The cancel can arrive before the turn or task.

        Raises:
            NotFound: The gateway does not know the id, or the key does not cover its agent.
        """
        self.check_loop()
        kind: Kind = "task" if task else "turn"
        await self._transport.cancel(kind, self._tenant_of(tenant), name(id, f"{kind}_id", ID_BYTES_MAX), reason)

    async def follow(self, task_id: str, *, tenant: str | None = None, position: int = 0) -> AsyncGenerator[Event, None]:
        """Yields the events of a task from a position to its end. The last event is ``ended``.

        Raises:
            NotFound: The gateway did not know the task within ``retry_timeout``.
        """
        self.check_loop()
        id = name(task_id, "task_id", ID_BYTES_MAX)
        # If the caller stops iterating, this closes the request.
        async with aclosing(self._transport.follow(self._tenant_of(tenant), id, position)) as events:
            async for event in events:
                yield event

    def _tenant_of(self, tenant: str | None) -> str | None:
        return self._transport.tenant_of(tenant if tenant is not None else self._tenant)
