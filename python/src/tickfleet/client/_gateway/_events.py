"""Events of a task from a gateway, as server-sent events."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

# This import comes first, because its error names the package to install.
from tickfleet.client._gateway._http import Http, answer_of, checked, passing, segment

import httpx2 as httpx

from tickfleet.client._errors import FleetError, Forbidden, NotFound, Unavailable
from tickfleet.client._events import Event, Kind
from tickfleet.client._reply import PendingApproval, Reply, read_reply

# Other events (accepted, execute, waiting, capped) are not steps of a task's history, and have no positions.
_STEPS: dict[str, Kind] = {"plan": "plan", "result": "result", "note": "note", "agent_message": "agent_message"}

_ENDS = ("answer", "failed")
_TURN_ENDS = ("reply", "not_found", "damaged")

# Line ends of server-sent events. Other line ends in Unicode (U+2028, U+0085, …) are part of the text.
_LINE_ENDS = re.compile(rb"\r\n|\n|\r")

# After this many seconds, a stream counts as healthy, and its loss begins a new retry timeout.
_GOOD_S = 5.0


async def follow(http: Http, tenant: str | None, task_id: str, position: int) -> AsyncGenerator[Event, None]:
    """Yields the events of a task from a position on. If the stream is lost, continues after the last reported step."""
    async with aclosing(_stream(http, f"/v1/tasks/{segment(task_id)}/events", tenant, position)) as events:
        async for kind, value in events:
            if kind in _ENDS:
                yield Event("ended", int(value["position"]), reply=await _reply(http, tenant, task_id))
                return
            if kind in _STEPS:
                position = int(value["position"])
                yield _step(_STEPS[kind], position, value)
            if kind == "not_found":
                reply = await _reply(http, tenant, task_id)
                if reply is not None and reply.status == "rejected":
                    # A rejected task has no events.
                    yield Event("ended", position, reply=reply)
                    return


async def pending_approval(http: Http, tenant: str | None, id: str) -> PendingApproval | None:
    """Follows a turn until a call waits for an approval. ``None`` if the turn ends before, or cannot be followed."""
    try:
        async with aclosing(_stream(http, f"/v1/turns/{id}/events", tenant, 0)) as events:
            async for kind, value in events:
                if kind == "waiting" and value.get("for") == "approval":
                    return PendingApproval(value["approval"], value["call"], int(value["until_ms"]))
                if kind in _TURN_ENDS:
                    return None
    except Forbidden:
        pass
    return None


async def _stream(
    http: Http, path: str, tenant: str | None, position: int
) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """Yields events by name, without end. If the stream is lost, continues after the last position. If the path is not
    found, yields ``not_found`` and tries again: the fleet may not have admitted the turn or task yet."""
    retries = http.retries(http.retry_timeout)
    while True:
        error: FleetError = Unavailable("the gateway closed the event stream too early")
        seconds: float | None = None
        began, came_from = time.monotonic(), position
        try:
            async with http.stream(path, tenant, position) as response:
                if response.status_code == 200:
                    async for kind, value in _events(_lines(response.aiter_bytes())):
                        if kind in _STEPS:
                            position = int(value.get("position", position))
                        yield kind, value
                else:
                    text = (await response.aread()).decode(errors="replace")
                    answer = checked(answer_of(response.status_code, text, response.headers))
                    seconds = answer.retry_after
                    error = NotFound(answer.message) if answer.status == 404 else passing(answer)
        except httpx.RequestError as lost:
            http.check_open()
            error = Unavailable(f"the gateway cannot be reached: {lost or type(lost).__name__}")
        if isinstance(error, NotFound):
            yield "not_found", {}
        if position > came_from or time.monotonic() - began > _GOOD_S:
            retries = http.retries(http.retry_timeout)
        await retries.pause(error, seconds)


def _step(kind: Kind, position: int, value: dict[str, Any]) -> Event:
    return Event(
        kind=kind,
        position=position,
        text=str(value.get("text", value.get("content", ""))),
        tool=value.get("tool"),
        success=value.get("ok"),
        calls=list(value.get("calls", [])),
        raw=value,
    )


async def _reply(http: Http, tenant: str | None, task_id: str) -> Reply | None:
    answer = await http.ask("GET", f"/v1/turns/{task_id}", tenant)
    return read_reply(answer.text) if answer.status in (200, 422) else None


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yields complete lines, however the bytes were split. Drops an incomplete last line."""
    rest, was_cr = b"", False
    async for piece in pieces:
        if not piece:
            continue
        # A line feed at the start of a piece may belong to a carriage return at the end of the previous piece.
        text = piece[1:] if was_cr and piece.startswith(b"\n") else piece
        was_cr = piece.endswith(b"\r")
        *lines, rest = _LINE_ENDS.split(rest + text)
        for line in lines:
            yield line.decode(errors="replace")


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yields events by name, with their JSON. Skips unreadable events."""
    kind, data = "", []
    async for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = value
        elif field == "data":
            data.append(value)
        elif line == "" and data:
            try:
                read = json.loads("\n".join(data))
            except ValueError:
                read = None
            if isinstance(read, dict):
                yield kind, read
            kind, data = "", []
