"""The connection to Redis: a single server, a primary behind Sentinels, or a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

try:
    import redis.asyncio as aio
    from redis import exceptions
    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError as error:  # pragma: no cover - names the package to install
    raise ImportError("the client needs redis-py: pip install 'tickfleet[redis]'") from error

from tickfleet.client._errors import MemoryPressure, QueueFull, Unavailable
from tickfleet.client._inbox import BLOCK_MS, COUNT, Entry, Inbox, entry_of
from tickfleet.client._reply import PendingApproval
from tickfleet.client._transport import DEFAULT_URL

# Timeout of a command in seconds. It must be longer than BLOCK_MS, because it includes a blocking read.
_ANSWER_S = 10.0

# Maximum number of concurrent commands. Each has its own connection, so this also limits the connections.
_AT_ONCE = 32

# Seconds before each retry; the last value is repeated.
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)

# Errors after which a command is retried. Every command in this file can safely be sent twice.
_PASSING = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, exceptions.TryAgainError, OSError)

_SENTINEL_PORT = 26379

# One script checks the limits and adds the entry, so that concurrent producers stay within the limits. All keys are
# declared, because a cluster that moves the slot must accept or redirect them together.
ENQUEUE = """#!lua
-- enqueue: puts a message on an inbound stream, unless too much waits there.
-- KEYS  1 stream · 2 meta
-- ARGV  1 field · 2 message · 3 most entries · 4 most bytes, 0 for any
-- reply the entry, or QUEUE_FULL, PRESSURE
if redis.call('HGET', KEYS[2], 'pressure') == '1' then return 'PRESSURE' end
local length, bytes_max = redis.call('XLEN', KEYS[1]), tonumber(ARGV[4])
if length >= tonumber(ARGV[3]) then return 'QUEUE_FULL' end
if bytes_max > 0 and length >= 64 and redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 5) >= bytes_max then
  return 'QUEUE_FULL'
end
return redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[2])
"""

T = TypeVar("T")


def _hosts(parts: SplitResult, port: int) -> list[tuple[str, int]]:
    """Returns the servers of a URL that may name several."""
    found = []
    for place in parts.netloc.rpartition("@")[2].split(","):
        host, colon, number = place.rpartition(":")
        found.append((host, int(number)) if colon and number.isdecimal() else (place, port))
    return found


def _options(parts: SplitResult) -> dict[str, Any]:
    """Returns user, password and encryption of a URL with several servers."""
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    said = {"username": unquote(user) or None, "password": unquote(password) or None}
    return {key: value for key, value in said.items() if value} | ({"ssl": True} if parts.scheme[:6] == "rediss" else {})


def _content(record: str) -> str:
    return record.split(" ", 3)[-1].lstrip("0123456789")


def connect(url: str) -> Any:
    """Creates a client for ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://host,host/name[/db]`` or
    ``redis+cluster://host,host``. It does not connect yet.

    Raises:
        ValueError: The URL is invalid.
    """
    common: dict[str, Any] = {
        "decode_responses": True,
        "protocol": 2,
        "socket_timeout": _ANSWER_S,
        "socket_connect_timeout": 5.0,
        # Connections for concurrent commands, with extra ones for blocking reads.
        "max_connections": 4 * _AT_ONCE,
        "retry": Retry(NoBackoff(), 0),
    }
    parts = urlsplit(url)
    if parts.scheme in ("unix", "redis+unix"):
        # The fleet and the library have different names for the parameters of the user.
        names = {"user": "username", "pass": "password"}
        query = [(names.get(key, key), value) for key, value in parse_qsl(parts.query)]
        parts = parts._replace(scheme="unix", query=urlencode(query))
    if parts.scheme in ("redis", "rediss", "unix"):
        return aio.Redis.from_url(urlunsplit(parts), **common)
    if parts.scheme in ("redis+sentinel", "rediss+sentinel"):
        name, _, db = parts.path.strip("/").partition("/")
        if not name:
            raise ValueError("the URL lacks the name of the primary: expected redis+sentinel://host:26379/primary")
        secret = _options(parts)
        # The Sentinels must not get the password of Redis.
        sentinel: Any = aio.Sentinel  # The library has no types for it.
        sentinels = sentinel(_hosts(parts, _SENTINEL_PORT), sentinel_kwargs={"socket_timeout": 5.0})
        return sentinels.master_for(name, db=int(db or 0), **secret, **common)
    if parts.scheme in ("redis+cluster", "rediss+cluster"):
        nodes = [ClusterNode(host, port) for host, port in _hosts(parts, 6379)]
        return aio.RedisCluster(startup_nodes=nodes, **_options(parts), **common)
    if parts.scheme == "tickfleet+unix":
        raise ValueError(
            "the URL leads to a tickfleet dev without Redis: pass the FLEET_URL and FLEET_KEY that it prints, or start it "
            "with --redis"
        )
    raise ValueError(
        f"the URL begins with {parts.scheme!r}; expected redis, rediss, unix, redis+sentinel or redis+cluster"
    )


class Redis:
    """The commands of this client. Each method can be repeated without a further effect."""

    def __init__(self, url: str, retry_timeout: float) -> None:
        self._client = connect(url)
        self._retry_timeout = retry_timeout
        is_default = url == DEFAULT_URL and not os.environ.get("REDIS_URL")
        self._name = f"no URL, and no tickfleet dev in this folder: Redis at the default {url}" if is_default else "Redis"
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._script: str | None = None
        self._may_run_scripts = True
        self._may_look_at_streams = True
        self._may_read_records = True
        self._may_look_for_tenants = True
        self._may_read_turns = True

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    async def _try(
        self, ask: Callable[[], Awaitable[T]], place: contextlib.AbstractAsyncContextManager[None] | None = None
    ) -> T:
        """Runs a command, and retries it after connection errors within `retry_timeout`."""
        end, tries = time.monotonic() + self._retry_timeout, 0
        while True:
            try:
                async with place or self._places:
                    return await ask()
            except exceptions.OutOfMemoryError as error:
                raise MemoryPressure("Redis memory is full; new work is rejected (pressure); retry later") from error
            except _PASSING as error:
                pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
                tries += 1
                if time.monotonic() + pause >= end:
                    raise Unavailable(f"{self._name} cannot be reached: {error}") from error
            except exceptions.RedisError as error:
                raise Unavailable(f"Redis rejected the command: {error}") from error
            await asyncio.sleep(pause)

    async def enqueue(self, stream: str, meta: str, field: str, message: str, bounds: tuple[int, int]) -> str:
        """Adds a message to an inbound stream, and returns its entry.

        Raises:
            QueueFull, MemoryPressure: Nothing was written.
            Unavailable: The message may have been written.
        """
        answer = await self._try(lambda: self._enqueue(stream, meta, field, message, bounds))
        if answer == "QUEUE_FULL":
            raise QueueFull("the queue is full (queue_full); retry later")
        if answer == "PRESSURE":
            raise MemoryPressure("Redis memory is nearly full; new work is rejected (pressure); retry later")
        return answer

    async def _enqueue(self, stream: str, meta: str, field: str, message: str, bounds: tuple[int, int]) -> str:
        if self._may_run_scripts:
            try:
                return await self._run(ENQUEUE, [stream, meta], [field, message, *bounds])
            except exceptions.NoPermissionError:
                # This Redis user may not run scripts, so the limits are checked just before the message is added.
                self._may_run_scripts = False
        if await self._client.hget(meta, "pressure") == "1":
            return "PRESSURE"
        if await self._client.xlen(stream) >= bounds[0]:
            return "QUEUE_FULL"
        entry: str = await self._client.xadd(stream, {field: message})
        return entry

    async def _run(self, source: str, keys: Sequence[str], arguments: Sequence[Any]) -> str:
        if self._script is None:
            self._script = await self._client.script_load(source)
        try:
            answer = await self._client.evalsha(self._script, len(keys), *keys, *arguments)
        except exceptions.NoScriptError:
            self._script = await self._client.script_load(source)
            answer = await self._client.evalsha(self._script, len(keys), *keys, *arguments)
        return str(answer)

    async def add(self, stream: str, field: str, message: str) -> str:
        """Adds a message to a stream without checking its bounds: messages that end work are never rejected."""
        entry: str = await self._try(lambda: self._client.xadd(stream, {field: message}))
        return entry

    async def read(self, inboxes: Sequence[Inbox], block_ms: int = BLOCK_MS) -> dict[str, list[Entry]]:
        """Waits for entries after the read position of each inbox. If no entry arrives, checks whether to read an inbox
        from its start again."""
        places = {inbox.key: inbox.last for inbox in inboxes}
        found = await self._client.xread(places, count=COUNT, block=max(1, block_ms))
        if not found:
            for inbox in inboxes:
                if inbox.is_behind(await self._newest(inbox.key)):
                    inbox.rewind()
        return {key: [entry_of(id, fields or {}) for id, fields in entries] for key, entries in found or []}

    async def patiently_read(self, inbox: Inbox, block_ms: int) -> list[Entry]:
        """Like :meth:`read`, for one inbox, with retries after connection errors."""
        # A blocking read must not count toward the limit on concurrent commands.
        found = await self._try(lambda: self.read([inbox], block_ms), contextlib.nullcontext())
        return found.get(inbox.key, [])

    async def patiently_remove(self, inbox: Inbox, ids: list[str]) -> None:
        """Like :meth:`remove`, with retries after connection errors."""
        await self._try(lambda: self.remove(inbox, ids))

    async def _newest(self, key: str) -> str | None:
        try:
            newest = await self._client.xrevrange(key, count=1)
        except exceptions.NoPermissionError:
            return None
        return newest[0][0] if newest else None

    async def remove(self, inbox: Inbox, ids: list[str]) -> None:
        """Removes read entries from an inbox."""
        for at in range(0, len(ids), 1_000):
            some = ids[at : at + 1_000]
            await self._client.xdel(inbox.key, *some)
            inbox.removed(some)

    async def forget(self, tenant: str, inbox: str, prefix: str) -> None:
        """Deletes the private inbox of this process, with its replies."""
        place = f"{tenant}:{inbox}"
        await self._client.delete(f"{prefix}replies:{place}", f"{prefix}read:{place}")
        await self._client.hdel(f"{prefix}seqs:{tenant}", inbox)
        await self._client.zrem(f"{prefix}inboxes:{tenant}", inbox)

    async def take(self, stream: str, consumer: str) -> tuple[str, dict[str, str]] | None:
        """Takes the next entry of a queue. Returns ``None`` if there is none, or if the queue does not exist."""
        starts = [">"]

        async def ask() -> tuple[str, dict[str, str]] | None:
            for start in list(starts):
                # If the response was lost, the entry is now pending. A retry therefore reads pending entries first.
                starts[:] = ["0", ">"]
                try:
                    found = await self._client.xreadgroup("workers", consumer, {stream: start}, count=1)
                except exceptions.ResponseError as error:
                    if str(error).startswith("NOGROUP"):
                        return None
                    raise
                entries = found[0][1] if found else []
                if entries and entries[0][1]:
                    return str(entries[0][0]), entries[0][1]
            return None

        return await self._try(ask)

    async def get(self, key: str) -> str | None:
        """Returns the value of a key."""
        text: str | None = await self._try(lambda: self._client.get(key))
        return text

    async def record(self, key: str) -> str | None:
        """Like :meth:`get`. Returns ``None`` if the Redis user may read only its own inbox."""
        if not self._may_read_records:
            return None

        async def ask() -> str | None:
            try:
                text: str | None = await self._client.get(key)
                return text
            except exceptions.NoPermissionError:
                self._may_read_records = False
                return None

        return await self._try(ask)

    async def is_absent(self, prefix: str, place: str) -> bool:
        """Returns whether the fleet rejects this turn or task (``<tenant>:<id>``) because its tenant is not configured,
        and has no record of the turn or task."""
        if not self._may_look_for_tenants:
            return False
        try:
            if not await self._client.exists(f"{prefix}absent:{place.partition(':')[0]}"):
                return False
            # The tenant may have been configured in the meantime. An accepted message has the record `turn` before
            # `done`, so the order of the checks matters.
            return not any([await self._client.exists(f"{prefix}{kind}:{place}") for kind in ("turn", "done")])
        except exceptions.NoPermissionError:
            self._may_look_for_tenants = False
            return False

    async def pending_approval(self, prefix: str, place: str) -> PendingApproval | None:
        """Returns the approval that the next call of a turn (``<tenant>:<id>``) waits for. ``None`` if it waits for
        nothing or something else, if the approval is decided, or if the Redis user may not read turns."""
        if not self._may_read_turns:
            return None

        async def ask() -> PendingApproval | None:
            try:
                record = await self._client.get(f"{prefix}turn:{place}")
                turn = {} if record is None else json.loads(_content(record))
                state = turn.get("s", {})
                reason = state.get("reason", {})
                if state.get("s") != "waiting" or reason.get("f") != "approval":
                    return None
                # A decision about the approval makes the timer of the turn due immediately. The record changes only
                # when the timer fires. An earlier timer therefore means that the approval is decided.
                timer = await self._client.zscore(f"{prefix}timers", f"turn:{place}")
            except exceptions.NoPermissionError:
                self._may_read_turns = False
                return None
            if timer is None or timer < state["due_ms"]:
                return None
            call = f"{place.partition(':')[2]}/{turn.get('p', 0)}"
            return PendingApproval(reason["approval"], call, state["due_ms"])

        return await self._try(ask)

    async def content(self, key: str) -> str | None:
        """Returns the JSON of a record, after its version, entry, counters and schema number."""
        record = await self.get(key)
        return None if record is None else _content(record)

    async def history(self, key: str, start: int) -> list[str]:
        """Returns the steps of a task from `start` on. Each step is a part of its history."""
        names = [f"s{number:06}" for number in range(start, start + 32)]
        found: list[str | None] = await self._try(lambda: self._client.hmget(key, names))
        return [step for step in found if step is not None]

    async def exists(self, key: str) -> bool:
        """Returns whether a key exists."""
        return bool(await self._try(lambda: self._client.exists(key)))

    async def waits(self, stream: str, entry: str) -> bool:
        """Returns whether an entry is still on its stream. A decided entry is removed from the stream."""
        if not self._may_look_at_streams:
            return False
        try:
            return bool(await self._client.xrange(stream, entry, entry, count=1))
        except exceptions.NoPermissionError:
            self._may_look_at_streams = False
            return False
