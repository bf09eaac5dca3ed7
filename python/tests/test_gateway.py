"""Tests of the client's decisions about responses, without a gateway. The tests with a gateway are in
tests/conformance."""

import asyncio
import json
import pickle
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

if sys.version_info < (3, 11):
    pytest.skip("a gateway needs Python 3.11 or later", allow_module_level=True)

import httpx2 as httpx
from tickfleet import client
from tickfleet.client import (
    AsyncFleet,
    FleetError,
    Forbidden,
    MemoryPressure,
    QueueFull,
    ReplyTimeout,
    Throttled,
    Unauthorized,
    Unavailable,
)
from tickfleet.client._gateway._events import _events, _lines
from tickfleet.client._gateway._http import Answer, RetryBudget, answer_of, checked, passing


def answer(status: int, code: str, after: str | None = None) -> Answer:
    body = json.dumps({"error": {"code": code, "message": "why"}})
    return answer_of(status, body, {} if after is None else {"retry-after": after})


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, "queue_full", QueueFull),
        (503, "pressure", MemoryPressure),
        (429, "inbox_full", Throttled),
        (429, "too_many_waiting", Unavailable),
        (503, "unavailable", Unavailable),
        (500, "internal", Unavailable),
    ],
)
def test_temporary_errors_have_their_own_types(status: int, code: str, kind: type[FleetError]) -> None:
    error: Any = passing(answer(status, code, "3"))
    assert type(error) is kind and "why" in str(error)
    assert getattr(error, "retry_after", 3.0) == 3.0


def test_a_response_of_a_proxy_is_not_one_of_the_gateway() -> None:
    for text in ("<html>", "[]", "", '{"error": "no object"}'):
        said = answer_of(502, text, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})
        assert said.code == "" and said.message == "status 502" and said.retry_after is None
        assert isinstance(passing(said), Unavailable)
    for status, kind in ((401, Unauthorized), (403, Forbidden), (307, FleetError)):
        with pytest.raises(kind):
            checked(answer(status, "x"))
    assert checked(answer(404, "not_found")).message == "why"


def test_the_retry_timeout_ends_before_a_pause_that_is_longer() -> None:
    async def ask() -> None:
        with pytest.raises(QueueFull):
            await RetryBudget(5.0).pause(QueueFull("full"), 60.0)
        await RetryBudget(5.0).pause(QueueFull("full"))

    asyncio.run(ask())


Answers = Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]


def stub(fleet: AsyncFleet, answers: Answers) -> None:
    """Replaces the gateway of a client with these responses."""
    transport = httpx.MockTransport(answers)
    getattr(fleet._transport, "http")._client = httpx.AsyncClient(base_url="http://gateway", transport=transport)


def with_gateway(answers: Answers, work: Callable[[AsyncFleet], Awaitable[None]]) -> None:
    """Runs work with a client. A stub of the gateway gives these responses."""

    async def run() -> None:
        async with AsyncFleet("http://gateway", api_key="tfk_x", retry_timeout=0.2) as fleet:
            stub(fleet, answers)
            await work(fleet)

    asyncio.run(run())


def test_concurrent_requests_share_one_wait() -> None:
    asked: list[str] = []

    async def never(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.query.decode()}")
        await asyncio.sleep(float(request.url.params.get("wait", 0)))
        return httpx.Response(202 if request.method == "POST" else 404, json={})

    async def work(fleet: AsyncFleet) -> None:
        with pytest.raises(ReplyTimeout):
            await fleet.run("kelly", answer="hi", timeout=1.5)

    with_gateway(never, work)
    assert asked[0] == "POST wait=1" and set(asked[1:]) == {"GET "}, asked


def test_an_accepted_turn_survives_a_gateway_with_too_many_waiters() -> None:
    reply = {"turn_id": "t", "tenant": "demo", "status": "done", "dialect": "raw", "results": []}
    asked: list[str] = []

    async def answers(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.query.decode()}")
        if len(asked) > 2:
            return httpx.Response(200, json=reply)
        if len(asked) == 2:
            return httpx.Response(202, json={})
        error = {"error": {"code": "too_many_waiting", "message": "ask without waiting"}}
        return httpx.Response(429, json=error, headers={"retry-after": "7"})

    async def work(fleet: AsyncFleet) -> None:
        assert (await fleet.run("kelly", answer="hi", timeout=30)).id == "t"

    with_gateway(answers, work)
    assert asked[:2] == ["POST wait=25", "POST "], asked


def test_a_response_of_a_proxy_is_neither_a_tool_list_nor_a_cancel_result() -> None:
    async def answers(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="<html>a proxy</html>")

    async def work(fleet: AsyncFleet) -> None:
        for asked in (fleet.tools("kelly"), fleet.cancel("t")):
            with pytest.raises(FleetError, match="without JSON"):
                await asked

    with_gateway(answers, work)


class OneNote(httpx.AsyncByteStream):
    """A stream that sends one event and stays open."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'event: note\ndata: {"position": 1}\n\n'
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed.set()


def test_leaving_the_iterator_ends_the_request() -> None:
    streams = OneNote(), OneNote()

    async def answers(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=streams["sync" in request.url.path])

    async def work(fleet: AsyncFleet) -> None:
        events = fleet.follow("t")
        assert (await anext(events)).kind == "note"
        await events.aclose()
        assert streams[0].closed.is_set()

    with_gateway(answers, work)
    with client.Fleet("http://gateway", api_key="tfk_x") as fleet:
        stub(fleet._running().fleet, answers)
        events = fleet.follow("sync")
        assert next(events).kind == "note"
        del events
        assert streams[1].closed.wait(60)


def reported(*pieces: bytes) -> list[Any]:
    async def each() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def read() -> list[Any]:
        return [event async for event in _events(_lines(each()))]

    return asyncio.run(read())


def test_events_are_read_as_they_arrive_and_unknown_ones_are_skipped() -> None:
    lines = [": keep-alive", "", "event: plan", 'data: {"a":', "data:1}", "id: 4", "", "event: odd", "data: {", "", "data: 7", ""]
    lines += ["event: cut", 'data: {"never": "ended"}']
    assert reported("\n".join(lines).encode()) == [("plan", {"a": 1})]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_end_only_at_line_ends(end: str) -> None:
    # Models and tools produce such characters. `str.splitlines` would end a line at each of them.
    text = "a\u2028b\u2029c\x85dé"
    whole = f'event: note{end}data: {{"text": "{text}"}}{end}{end}event: note{end}data: {{"n": 2}}{end}{end}'.encode()
    expected = [("note", {"text": text}), ("note", {"n": 2})]
    assert reported(whole) == expected
    # Split after each byte: within a character, and between a carriage return and its line feed.
    assert reported(*(bytes([byte]) for byte in whole)) == expected


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (client.InvalidMessage("why"), "invalid"),
        (client.Unauthorized("why"), "unauthorized"),
        (client.Forbidden("why"), "forbidden"),
        (client.Throttled("inbox_full", "why"), "inbox_full"),
        (client.Conflict("t", "why"), "conflict"),
        (client.ReplyTimeout("t", 3.0), "timeout"),
        (client.Unavailable("why", "t"), "unavailable"),
        (client.NoDefinitions("why"), "no_definitions"),
        (client.NotFound("why"), "not_found"),
        (client.Unsupported("why"), "unsupported"),
    ],
)
def test_errors_have_the_documented_codes(error: FleetError, code: str) -> None:
    assert error.code == code and pickle.loads(pickle.dumps(client.FleetError("why", code))).code == code


@pytest.mark.parametrize("url", ["https://", "https://key@host", "https://host?key=x", "https://host#x"])
def test_a_gateway_url_needs_a_host_and_no_password(url: str) -> None:
    with pytest.raises(ValueError, match="the URL cannot be read"):
        AsyncFleet(url, api_key="tfk_x")


def test_the_error_for_an_invalid_key_does_not_contain_it() -> None:
    with pytest.raises(ValueError, match="characters") as refused:
        AsyncFleet("https://host", api_key="tfk_secret\n")
    assert "tfk_secret" not in str(refused.value)
