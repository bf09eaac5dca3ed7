"""Checks how the Python client handles failures between client and gateway, and how it reports features that a gateway
does not support. Usage: `gateway.py TENANT`, with `GATEWAY_URL`, `GATEWAY_KEY`, `READING_KEY` (a read-only key) and
`REDIS_URL`.

Agent `frugal` has one call per day. If a turn ran twice, this cap would show it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

from tickfleet import AsyncFleet, Fleet
from tickfleet.client import (
    Conflict,
    Event,
    FleetError,
    Forbidden,
    InvalidMessage,
    NoDefinitions,
    NotFound,
    MemoryPressure,
    QueueFull,
    Rejected,
    ReplyTimeout,
    Throttled,
    Unauthorized,
    Unavailable,
    Unsupported,
)
from tickfleet.client._aio import Format

URL, KEY, READING = (os.environ[name] for name in ("GATEWAY_URL", "GATEWAY_KEY", "READING_KEY"))
TENANT = sys.argv[1]
ECHO = [{"name": "echo", "arguments": {"text": "hi"}}]

Fate = str | tuple[int, dict[str, str], str]
# `cut` closes the connection after the gateway's answer, and `half` in the middle of the answer. `hang` never answers.


class Wire:
    """A proxy in front of the gateway. Each entry of `fates` decides about one request. If there are no entries left,
    requests pass through."""

    def __init__(self) -> None:
        self.fates: list[Fate] = []
        self.seen: list[str] = []
        self.spent = asyncio.Event()
        self.serving: set[Any] = set()

    async def __aenter__(self) -> Wire:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.server.close()
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)

    def fleet(self, **options: Any) -> AsyncFleet:
        return AsyncFleet(self.url, api_key=KEY, **options)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((line.split(":")[1] for line in head.lower().split("\r\n") if line.startswith("content-length:")), "0")
            body = await reader.readexactly(int(length))
            self.seen.append(" ".join(head.split(" ", 2)[:2]))
            fate = self.fates.pop(0) if self.fates else "through"
            if not self.fates:
                self.spent.set()
            if isinstance(fate, tuple):
                status, headers, text = fate
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                size = len(text.encode())
                answer = f"HTTP/1.1 {status} X\r\n{lines}content-length: {size}\r\nconnection: close\r\n\r\n{text}"
                writer.write(answer.encode())
            elif fate == "hang":
                await reader.read()
            else:
                await self.forward(head, body, writer, fate)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self.serving.discard(asyncio.current_task())

    async def forward(self, head: str, body: bytes, writer: asyncio.StreamWriter, fate: str) -> None:
        host, port = URL.removeprefix("http://").split(":")
        there, to = await asyncio.open_connection(host, int(port))
        to.write(head.replace("\r\n", "\r\nconnection: close\r\n", 1).encode() + body)
        if fate == "cut":
            await there.read()
        elif fate == "half":
            writer.write(await there.readuntil(b"event: plan"))
            writer.write(await there.readuntil(b"\n\n"))
        else:
            while some := await there.read(65536):
                writer.write(some)
                await writer.drain()
        to.close()


def refusal(status: int, code: str, after: str = "1") -> Fate:
    body = json.dumps({"error": {"code": code, "message": "said by the test"}})
    return status, {"retry-after": after, "content-type": "application/json"}, body


async def raises(kind: type[Exception], work: Any, **said: Any) -> None:
    try:
        found = await work
    except kind as error:
        for name, value in said.items():
            assert getattr(error, name) == value, (name, value, getattr(error, name))
        return
    raise AssertionError(f"expected {kind.__name__}, found {found}")


def forbids(kind: type[Exception], work: Callable[[], Any]) -> None:
    try:
        work()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}")


async def a_turn_whose_answer_is_lost_is_carried_out_once(wire: Wire) -> None:
    wire.fates = ["cut", "cut", "through"]
    async with wire.fleet() as fleet:
        reply = await fleet.run("frugal", calls=ECHO, timeout=30.0)
    assert [result.outcome for result in reply.results] == ["ok"], reply
    assert [seen.split("?")[0] for seen in wire.seen[:3]] == ["POST /v1/turns"] * 3, wire.seen
    wire.fates = ["through", "cut", "cut"]
    async with wire.fleet() as fleet:
        turn = await fleet.submit("kelly", calls=ECHO)
        assert (await turn.reply()).output == {"text": "hi"}


async def a_refusal_that_another_gateway_heard_is_told(wire: Wire) -> None:
    wire.fates = [(202, {"content-type": "application/json"}, '{"turn_id": "t", "state": "accepted", "duplicate": false}')]
    async with wire.fleet() as fleet:
        turn = await fleet.submit("nobody", calls=ECHO)
        await raises(Rejected, turn.reply(30.0), code="unknown_agent")


async def a_gateway_that_is_busy_is_asked_again_when_it_says(wire: Wire) -> None:
    async with wire.fleet() as fleet:
        wire.fates = [refusal(429, "queue_full")]
        assert (await fleet.run("kelly", calls=ECHO)).ok
    # The first pause of a client takes 0.05 s, so only the seconds of `retry-after` can exceed this retry timeout.
    async with wire.fleet(retry_timeout=0.5) as hasty:
        for status, code, kind in (
            (429, "queue_full", QueueFull),
            (503, "pressure", MemoryPressure),
            (429, "rate_limited", Throttled),
            (503, "unavailable", Unavailable),
        ):
            wire.fates = [refusal(status, code, "7")]
            said = {"id": "t"} if kind is Unavailable else {"code": code, "retry_after": 7.0}
            await raises(kind, hasty.run("kelly", calls=ECHO, turn_id="t"), **said)
        wire.fates, wire.seen = [refusal(429, "too_many_waiting", "7")], []
        assert (await hasty.run("kelly", calls=ECHO)).ok
        assert [seen.split("?")[0] for seen in wire.seen[:2]] == ["POST /v1/turns"] * 2, wire.seen
        wire.fates = [(502, {}, "<html>a proxy</html>")] * 9
        await raises(Unavailable, hasty.run("kelly", calls=ECHO, turn_id="t"), id="t")
        wire.fates = [(302, {"location": "http://127.0.0.1:1/"}, "")]
        await raises(FleetError, hasty.tools("kelly"))


async def what_waits_outlasts_trouble_and_keeps_to_its_time(wire: Wire) -> None:
    async with wire.fleet(retry_timeout=0.2) as fleet:
        task = await fleet.delegate("absent", "Wait.", task_id="long")
        await raises(ReplyTimeout, task.reply(0.3), id="long")
        assert await fleet.reply("long") is None
        wire.fates = [(503, {}, "")] * 3
        wire.spent.clear()
        waits = asyncio.create_task(fleet.wait("long"))
        await wire.spent.wait()
        await task.cancel("The user left.")
        assert (await waits).results[0].outcome == "cancelled" and (await task.reply()).raw == (await waits).raw
        await raises(ReplyTimeout, fleet.wait("never", timeout=0.1))
        await fleet.submit("kelly", calls=ECHO, turn_id="used")
        await raises(Conflict, fleet.submit("kelly", calls=ECHO * 2, turn_id="used"), id="used")
        wire.fates, wire.spent = ["through"], asyncio.Event()
        open_wait = asyncio.create_task(fleet.wait("never"))
        await wire.spent.wait()
    await raises(FleetError, open_wait)
    await raises(FleetError, fleet.run("kelly", calls=ECHO))


async def whatever_is_open_when_a_client_is_closed_is_told(wire: Wire) -> None:
    async with wire.fleet(retry_timeout=100_000) as fleet:
        wire.fates = [refusal(503, "unavailable", "3600")]
        open_works: list[Any] = [asyncio.ensure_future(fleet.submit("kelly", calls=ECHO))]
        await wire.spent.wait()
        works: list[Any] = [fleet.run("kelly", calls=ECHO), fleet.tools("kelly"), fleet.wait("t"), anext(fleet.follow("t"))]
        wire.fates, wire.spent = ["hang"] * len(works), asyncio.Event()
        open_works += [asyncio.ensure_future(work) for work in works]
        await wire.spent.wait()
    for work in [*open_works, fleet.run("kelly", calls=ECHO), anext(fleet.follow("t"))]:
        await raises(FleetError, work, code="closed")


async def events_are_those_of_redis_and_go_on_where_the_wire_was_cut(wire: Wire) -> None:
    async with wire.fleet() as fleet:
        task = await fleet.delegate("absent", "Wait.", task_id="steps")
        key = f"{{tickfleet:0}}:parts:steps:{TENANT}:steps"
        steps = [
            {"k": "plan", "model": "m", "text": "Let me see.", "calls": [{"tool": "echo", "arguments": "{}"}]},
            {"k": "result", "tool": "echo", "ok": True, "content": "hi"},
            {"k": "note", "text": "Two calls are left."},
        ]
        parts = [part for n, step in enumerate(steps) for part in (f"s{n:06}", json.dumps(step))]
        redis = ["redis-cli", "-u", os.environ["REDIS_URL"]]
        subprocess.run([*redis, "HSET", key, *parts], check=True, stdout=subprocess.DEVNULL)
        wire.seen, wire.fates = [], ["half"]
        events, reported = task.events(), []
        while len(reported) < 3:
            reported.append(await anext(events))
        assert len(wire.seen) >= 2, wire.seen
        await task.cancel()
        reported += [event async for event in events]
        assert (await task.reply()).results[0].outcome == "cancelled"
    assert [event.kind for event in reported] == ["plan", "result", "note", "ended"]
    assert [event.position for event in reported] == [1, 2, 3, 3]
    async with AsyncFleet(tenant=TENANT) as direct:
        found = [event async for event in direct.follow("steps")]
        for dialect in get_args(Format):
            through = await AsyncFleet(URL, api_key=KEY).tools("kelly", format=dialect)
            assert await direct.tools("kelly", format=dialect) == through, dialect

    def seen(event: Event) -> Any:
        return event.kind, event.position, event.text, event.tool, event.success, event.calls, event.reply

    assert list(map(seen, reported)) == list(map(seen, found)), (reported, found)


async def keys_open_what_they_are_for(_: Wire) -> None:
    async with AsyncFleet(URL, api_key="tfk_wrong") as wrong:
        await raises(Unauthorized, wrong.run("kelly", calls=ECHO))
        await raises(Unauthorized, wrong.wait("order-17"))
        await raises(Unauthorized, anext(wrong.follow("order-17")))
    async with AsyncFleet(URL, api_key=lambda: READING) as reading:
        await raises(Forbidden, reading.run("kelly", calls=ECHO))
        await raises(Forbidden, reading.cancel("order-17"))
        assert await reading.tools("kelly", format="anthropic")
    async with AsyncFleet(URL, api_key=KEY, tenant="another") as other:
        await raises(Forbidden, other.run("kelly", calls=ECHO))
        await raises(Forbidden, other.reply("order-17"))
    for key in ("tfk_a b", "tfk_a\n"):
        forbids(ValueError, lambda: AsyncFleet(URL, api_key=key))
    async with AsyncFleet("http://127.0.0.1:1", api_key=KEY, retry_timeout=0.1) as nowhere:
        await raises(Unavailable, nowhere.run("kelly", calls=ECHO, turn_id="t"), id="t")


async def what_a_gateway_cannot_do_is_said(_: Wire) -> None:
    async with AsyncFleet(URL, api_key=KEY) as fleet:
        forbids(Unsupported, lambda: fleet.replies("box"))
        await raises(Unsupported, fleet.submit("kelly", calls=ECHO, pending_approval=True))
        turn = await fleet.submit("kelly", calls=ECHO)
        forbids(Unsupported, lambda: turn.pending)
        await raises(Unsupported, fleet.cancel(".."))
        await raises(NoDefinitions, fleet.tools("nobody"))
        await raises(InvalidMessage, fleet.tools("kelly", format="nonsense"))
        call = {"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": "{}"}}
        try:
            await fleet.run("kelly", tool_calls=[call], priority="asap")
        except Rejected as error:
            assert error.reply.messages[0]["tool_call_id"] == "call_1", error.reply
        await raises(NotFound, anext(AsyncFleet(URL, api_key=KEY, retry_timeout=0.3).follow("never")))
    for options in ({"shards": 2}, {"inbox": "box"}, {"turns_max": 0}, {"namespace": "x"}):
        forbids(Unsupported, lambda: AsyncFleet(URL, api_key=KEY, **options))
    forbids(ValueError, lambda: AsyncFleet(URL))
    forbids(ValueError, lambda: AsyncFleet("redis://127.0.0.1:1", api_key=KEY))
    with Fleet(URL, api_key=KEY) as blocking:
        assert blocking.submit("kelly", calls=ECHO).reply(60.0).ok


async def main() -> None:
    for part in (
        a_turn_whose_answer_is_lost_is_carried_out_once,
        a_refusal_that_another_gateway_heard_is_told,
        a_gateway_that_is_busy_is_asked_again_when_it_says,
        what_waits_outlasts_trouble_and_keeps_to_its_time,
        whatever_is_open_when_a_client_is_closed_is_told,
        keys_open_what_they_are_for,
        what_a_gateway_cannot_do_is_said,
    ):
        async with Wire() as wire:
            await part(wire)
    assert "redis" not in sys.modules, "the way through a gateway needs no client of Redis"
    async with Wire() as wire:
        await events_are_those_of_redis_and_go_on_where_the_wire_was_cut(wire)
    other = "import sys, tickfleet; tickfleet.AsyncFleet('redis://127.0.0.1:1'); assert 'httpx2' not in sys.modules"
    subprocess.run([sys.executable, "-c", other], check=True)
    print("gateway: ok")


asyncio.run(main())
