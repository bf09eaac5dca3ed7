"""The connection to Redis: one server, a primary that sentinels know, or a cluster."""

from __future__ import annotations

import asyncio
import contextlib
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
except ImportError as error:  # pragma: no cover - said in words
    raise ImportError("the client needs redis-py: pip install 'tickfleet[client]'") from error

from tickfleet.client._errors import Pressure, QueueFull, Unavailable
from tickfleet.client._inbox import BLOCK_MS, COUNT, Entry, Inbox, entry_of
from tickfleet.client._transport import DEFAULT_URL

_ANSWER_S = 10.0
# A command answers within this time, a blocking read too. It is longer than BLOCK_MS.

_AT_ONCE = 32
# Commands under way at the same time, each on a connection of its own: a burst of turns opens no more.

_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
# Seconds before each try again; the last one is repeated.

_PASSING = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, exceptions.TryAgainError, OSError)
# What a command may be tried again after: whatever is sent here does no more when it is sent twice.

_SENTINEL_PORT = 26379

# The bounds of the queue and the entry in one step, so that producers at the same time do not pass them. All keys are
# declared: a cluster that moves the slot answers for all of them or none.
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
    """The servers of a URL that may name several."""
    found = []
    for place in parts.netloc.rpartition("@")[2].split(","):
        host, colon, number = place.rpartition(":")
        found.append((host, int(number)) if colon and number.isdecimal() else (place, port))
    return found


def _options(parts: SplitResult) -> dict[str, Any]:
    """User, password and encryption of a URL that names several servers."""
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    said = {"username": unquote(user) or None, "password": unquote(password) or None}
    return {key: value for key, value in said.items() if value} | ({"ssl": True} if parts.scheme[:6] == "rediss" else {})


def connect(url: str) -> Any:
    """A client for ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://host,host/name[/db]`` or
    ``redis+cluster://host,host``. Nothing is connected to yet.

    Raises:
        ValueError: The URL cannot be read.
    """
    common: dict[str, Any] = {
        "decode_responses": True,
        "protocol": 2,
        "socket_timeout": _ANSWER_S,
        "socket_connect_timeout": 5.0,
        # Those under way, and room for what reads.
        "max_connections": 4 * _AT_ONCE,
        "retry": Retry(NoBackoff(), 0),
    }
    parts = urlsplit(url)
    if parts.scheme in ("unix", "redis+unix"):
        # The fleet's own words for a user are not the library's.
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
        # The sentinels have no password of their own here.
        sentinel: Any = aio.Sentinel  # It has no types.
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
    """What this client asks of Redis. Every method may be repeated: it does no more than once."""

    def __init__(self, url: str, patience: float) -> None:
        self._client = connect(url)
        self._patience = patience
        is_default = url == DEFAULT_URL and not os.environ.get("REDIS_URL")
        self._name = f"REDIS_URL is unset: Redis at the default {url}" if is_default else "Redis"
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._script: str | None = None
        self._may_run_scripts = True
        self._may_look_at_streams = True
        self._may_read_records = True
        self._may_look_for_tenants = True

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    async def _try(
        self, ask: Callable[[], Awaitable[T]], place: contextlib.AbstractAsyncContextManager[None] | None = None
    ) -> T:
        """Asks, and asks again where the connection was the trouble, as long as there is patience."""
        end, tries = time.monotonic() + self._patience, 0
        while True:
            try:
                async with place or self._places:
                    return await ask()
            except exceptions.OutOfMemoryError as error:
                raise Pressure("Redis memory is full; new work is rejected (pressure); retry later") from error
            except _PASSING as error:
                pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
                tries += 1
                if time.monotonic() + pause >= end:
                    raise Unavailable(f"{self._name} cannot be reached: {error}") from error
            except exceptions.RedisError as error:
                raise Unavailable(f"Redis rejected the command: {error}") from error
            await asyncio.sleep(pause)

    async def enqueue(self, stream: str, meta: str, field: str, message: str, bounds: tuple[int, int]) -> str:
        """Puts a message on an inbound stream. Answers its entry.

        Raises:
            QueueFull, Pressure: Nothing was written.
            Unavailable: It may have been written.
        """
        answer = await self._try(lambda: self._enqueue(stream, meta, field, message, bounds))
        if answer == "QUEUE_FULL":
            raise QueueFull("the queue is full (queue_full); retry later")
        if answer == "PRESSURE":
            raise Pressure("Redis memory is nearly full; new work is rejected (pressure); retry later")
        return answer

    async def _enqueue(self, stream: str, meta: str, field: str, message: str, bounds: tuple[int, int]) -> str:
        if self._may_run_scripts:
            try:
                return await self._run(ENQUEUE, [stream, meta], [field, message, *bounds])
            except exceptions.NoPermissionError:
                # A user of Redis who may run no script: its bounds are looked at just before.
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
        """Puts a message on a stream, whatever waits there: what ends work is never refused."""
        entry: str = await self._try(lambda: self._client.xadd(stream, {field: message}))
        return entry

    async def read(self, inboxes: Sequence[Inbox], block_ms: int = BLOCK_MS) -> dict[str, list[Entry]]:
        """What stands in inboxes behind what was read, waited for. Looks back where nothing came."""
        places = {inbox.key: inbox.last for inbox in inboxes}
        found = await self._client.xread(places, count=COUNT, block=max(1, block_ms))
        if not found:
            for inbox in inboxes:
                if inbox.is_behind(await self._newest(inbox.key)):
                    inbox.look_back()
        return {key: [entry_of(id, fields or {}) for id, fields in entries] for key, entries in found or []}

    async def patiently_read(self, inbox: Inbox, block_ms: int) -> list[Entry]:
        """As :meth:`read`, of one inbox, tried again where the connection was the trouble."""
        # It may last: it takes no place of those that do not.
        found = await self._try(lambda: self.read([inbox], block_ms), contextlib.nullcontext())
        return found.get(inbox.key, [])

    async def patiently_remove(self, inbox: Inbox, ids: list[str]) -> None:
        """As :meth:`remove`, tried again where the connection was the trouble."""
        await self._try(lambda: self.remove(inbox, ids))

    async def _newest(self, key: str) -> str | None:
        try:
            newest = await self._client.xrevrange(key, count=1)
        except exceptions.NoPermissionError:
            return None
        return newest[0][0] if newest else None

    async def remove(self, inbox: Inbox, ids: list[str]) -> None:
        """Removes what was read from an inbox."""
        for at in range(0, len(ids), 1_000):
            some = ids[at : at + 1_000]
            await self._client.xdel(inbox.key, *some)
            inbox.removed(some)

    async def forget(self, tenant: str, inbox: str, prefix: str) -> None:
        """Removes an inbox with all that is in it, for one that was made for this process."""
        place = f"{tenant}:{inbox}"
        await self._client.delete(f"{prefix}replies:{place}", f"{prefix}read:{place}")
        await self._client.hdel(f"{prefix}seqs:{tenant}", inbox)
        await self._client.zrem(f"{prefix}inboxes:{tenant}", inbox)

    async def get(self, key: str) -> str | None:
        """The text of a key."""
        text: str | None = await self._try(lambda: self._client.get(key))
        return text

    async def record(self, key: str) -> str | None:
        """As :meth:`get`, for one who may not be allowed to: whose user of Redis reads its inbox alone."""
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
        """Whether the fleet refuses what names this tenant, for it knows none of this name, and nothing is there of this turn
        or task (``<tenant>:<id>``)."""
        if not self._may_look_for_tenants:
            return False
        try:
            if not await self._client.exists(f"{prefix}absent:{place.partition(':')[0]}"):
                return False
            # A tenant may have been configured since: what was taken in has a record, in this order.
            return not any([await self._client.exists(f"{prefix}{kind}:{place}") for kind in ("turn", "done")])
        except exceptions.NoPermissionError:
            self._may_look_for_tenants = False
            return False

    async def content(self, key: str) -> str | None:
        """The JSON of a record: what follows its version, entry, counters and schema number."""
        record = await self.get(key)
        return None if record is None else record.split(" ", 3)[-1].lstrip("0123456789")

    async def history(self, key: str, start: int) -> list[str]:
        """The steps of a task from one on. Each is a part of its history."""
        names = [f"s{number:06}" for number in range(start, start + 32)]
        found: list[str | None] = await self._try(lambda: self._client.hmget(key, names))
        return [step for step in found if step is not None]

    async def exists(self, key: str) -> bool:
        """Whether there is such a key."""
        return bool(await self._try(lambda: self._client.exists(key)))

    async def waits(self, stream: str, entry: str) -> bool:
        """Whether an entry is still on its stream: what was decided about is taken from it."""
        if not self._may_look_at_streams:
            return False
        try:
            return bool(await self._client.xrange(stream, entry, entry, count=1))
        except exceptions.NoPermissionError:
            self._may_look_at_streams = False
            return False
