"""Transport over a gateway, as docs/reference/http-api.md specifies it.

A request without a response is sent again with the same id, so that it runs once. A reply is awaited with long polls,
each on its own connection.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

if sys.version_info < (3, 11):
    raise ImportError("a gateway needs Python 3.11 or later")

from tickfleet.client._errors import (
    Conflict,
    InvalidMessage,
    NoDefinitions,
    NotFound,
    Rejected,
    Throttled,
    Unavailable,
    Unsupported,
)
from tickfleet.client._events import Event
from tickfleet.client._gateway._events import follow, pending_approval
from tickfleet.client._gateway._http import Answer, Http, RetryBudget, segment
from tickfleet.client._message import name, written
from tickfleet.client._replies import Replies
from tickfleet.client._reply import CallError, PendingApproval, Reply, read_reply
from tickfleet.client._transport import ApiKey, Claim, Kind

# Seconds of one long poll: below the timeout of most proxies, and below the gateway's own limit of 60 s.
_POLL_S = 25

# Seconds within which a message may be submitted again to find out about a rejection. Fleets remember ids for longer.
_FRESH_S = 10.0

# Seconds between two requests if the gateway responds immediately.
_LOOK_AGAIN_S = 0.25

# Seconds to wait for the reply before the client checks for an approval.
_APPROVAL_AFTER_S = 1

# Minimum seconds for one request, even if the caller's timeout is shorter.
_ONE_LOOK_S = 2.0


class Gateway:
    """A client of one gateway, or of a load balancer in front of several."""

    inbox = None

    def __init__(self, url: str, api_key: ApiKey, retry_timeout: float) -> None:
        self.http = Http(url, api_key, retry_timeout)

    def tenant_of(self, tenant: str | None) -> str | None:
        return None if tenant is None else name(tenant, "tenant")

    async def close(self) -> None:
        await self.http.close()

    async def submit(
        self, kind: Kind, tenant: str | None, message: dict[str, Any], is_given: bool, waits: bool
    ) -> _Awaited:
        if message.get("pending_approval"):
            raise Unsupported("pending_approval: a gateway does not report approvals before the turn ends")
        awaited = _Awaited(self.http, kind, tenant, message)
        if not waits:
            await awaited.submit(0)
        return awaited

    async def send(self, kind: Kind, tenant: str | None, message: dict[str, Any]) -> None:
        await _Awaited(self.http, kind, tenant, message).submit(0)

    async def wait(self, tenant: str | None, id: str, timeout: float | None) -> Reply | None:
        return await _polled(self.http, lambda wait, retries: _read_turn(self.http, tenant, id, wait, retries), timeout)

    async def reply(self, tenant: str | None, id: str) -> Reply | None:
        answer = await self.http.ask("GET", f"/v1/turns/{segment(id)}", tenant)
        # Only the gateway that accepted the message has its rejection, so another gateway may have no reply.
        return read_reply(answer.text) if answer.status == 200 else None

    async def tools(self, tenant: str | None, agent: str, dialect: str) -> Any:
        answer = await self.http.ask("GET", f"/v1/agents/{segment(agent)}/tools?format={quote(dialect)}", tenant)
        if answer.status == 404:
            raise NoDefinitions(answer.message)
        return _good(answer).read()

    async def cancel(self, kind: Kind, tenant: str | None, id: str, reason: str) -> None:
        body = json.dumps({"reason": reason} if reason else {})
        answer = _good(await self.http.ask("POST", f"/v1/{kind}s/{segment(id)}/cancel", tenant, body=body))
        answer.read()
        if answer.json.get("result") == "full":
            raise Throttled("too_many_cancels", "too many early cancels are pending; this one was not stored; retry later")

    async def claim(self, tenant: str | None, id: str, claimant: str, wait: int) -> Claim | Reply | None:
        path = f"/v1/turns/{segment(id)}/claim"
        body = json.dumps({"claimant": claimant})
        answer = await self.http.ask(
            "POST", path + (f"?wait={wait}" if wait else ""), tenant, body=body, wait=wait, again=path
        )
        if answer.status == 404:
            # The turn may not have arrived yet, or another gateway has its rejection.
            return None
        found = _good(answer).read()
        if found["state"] == "ended":
            return read_reply(json.dumps(found["reply"]))
        return Claim.of(found["lease"], found["call"]) if found["state"] == "claimed" else None

    async def report(self, tenant: str | None, id: str, report: dict[str, Any]) -> None:
        answer = await self.http.ask("POST", f"/v1/turns/{segment(id)}/conclude", tenant, body=written(report))
        if answer.status != 404:
            _good(answer)

    def follow(self, tenant: str | None, task_id: str, position: int) -> AsyncGenerator[Event, None]:
        return follow(self.http, tenant, task_id, position)

    def replies(self, tenant: str | None, inbox: str, check: Callable[[], None]) -> Replies:
        raise Unsupported("replies: inboxes can be read only over Redis; through a gateway, wait for a turn by its id")


class _Awaited:
    """A submitted message and its reply."""

    def __init__(self, http: Http, kind: Kind, tenant: str | None, message: dict[str, Any]) -> None:
        self._http = http
        self._path = f"/v1/{kind}s"
        self._tenant = tenant
        self._id = segment(str(message[f"{kind}_id"]))
        self._text = written(message)
        self._kind: Kind = kind
        # Time when the message was accepted, by a clock that also runs while the machine sleeps.
        self._taken: float | None = None
        self._is_asked_for = False
        self._reply: Reply | None = None

    @property
    def pending(self) -> list[Reply]:
        raise Unsupported("pending: a gateway does not report approvals before the turn ends")

    async def submit(self, wait: int, retries: RetryBudget | None = None) -> Reply | None:
        """Sends the message, and repeats the request if necessary: the id makes it run once. Returns the reply, if it
        arrives within the wait."""
        headers = {"idempotency-key": self._id}
        # A proxy may cut off every request that waits, so the retry does not wait.
        path, again = self._path + (f"?wait={wait}" if wait else ""), self._path
        try:
            answer = await self._http.ask(
                "POST", path, self._tenant, body=self._text, headers=headers, wait=wait, retries=retries, again=again
            )
        except Unavailable as error:
            error.id = self._id
            raise
        if answer.status == 409:
            raise Conflict(self._id, answer.message)
        if answer.status == 400:
            raise self._refused(answer)
        self._taken, self._is_asked_for = time.time(), answer.waited > 0
        return _ended(_good(answer))

    async def reply(self, timeout: float | None) -> Reply | None:
        # Sending can also wait for the reply, so both share the timeout.
        end = None if timeout is None else time.monotonic() + timeout
        if self._reply is None and self._taken is None:
            # Until the message is accepted, an error concerns the sending and not the wait.
            self._reply = await self.submit(_seconds(timeout))
        if self._reply is None:
            self._reply = await _polled(self._http, self._read_reply, None if end is None else end - time.monotonic())
        return self._reply

    async def reply_or_approval(self, timeout: float | None) -> Reply | PendingApproval | None:
        end = None if timeout is None else time.monotonic() + timeout
        if self._reply is None and self._taken is None:
            # Most calls end within this wait, so no second request is needed.
            self._reply = await self.submit(min(_APPROVAL_AFTER_S, _seconds(timeout)))
        if self._reply is None and self._kind == "turn":
            left = None if end is None else max(_ONE_LOOK_S, end - time.monotonic())
            try:
                async with asyncio.timeout(left):
                    approval = await pending_approval(self._http, self._tenant, self._id)
            except TimeoutError:
                return None
            if approval is not None:
                return approval
        return await self.reply(None if end is None else max(0.0, end - time.monotonic()))

    async def _read_reply(self, wait: int, retries: RetryBudget) -> Reply | None:
        # Only the gateway that accepted the message has its rejection, and this request may reach another gateway.
        # Therefore the message is sent again. An accepted message does not run again.
        if self._taken is not None and not self._is_asked_for and abs(time.time() - self._taken) < _FRESH_S:
            self._is_asked_for = True
            return await self.submit(wait, retries)
        return await _read_turn(self._http, self._tenant, self._id, wait, retries)

    def _refused(self, answer: Answer) -> Exception:
        """Returns the error for a message that the gateway rejected: it breaks a rule of the protocol, or of HTTP."""
        if answer.code == "invalid_request":
            return InvalidMessage(answer.message)
        if answer.json.get("status") == "rejected":
            return Rejected(answer.code, answer.message, read_reply(answer.text))
        error = CallError(answer.code, answer.message)
        return Rejected(
            answer.code,
            answer.message,
            Reply(self._id, self._kind, self._tenant or "", "", "rejected", "raw", [], [], error, raw=answer.json),
        )


async def _read_turn(http: Http, tenant: str | None, id: str, wait: int, retries: RetryBudget) -> Reply | None:
    """Returns the reply to a turn or task, if it arrives within the wait."""
    answer = await http.ask("GET", f"/v1/turns/{segment(id)}{f'?wait={wait}' if wait else ''}", tenant, wait=wait, retries=retries)
    # A 404 is not an error, because the turn or task may not have arrived yet.
    return None if answer.status == 404 else _ended(_good(answer))


def _ended(answer: Answer) -> Reply | None:
    return read_reply(answer.text) if answer.status in (200, 422) else None


def _good(answer: Answer) -> Answer:
    """Returns the response if it is successful."""
    if answer.status in (200, 202, 422):
        return answer
    if answer.status == 404:
        raise NotFound(answer.message)
    if answer.status in (400, 413):
        raise InvalidMessage(answer.message)
    raise Unavailable(f"the gateway answered with status {answer.status}: {answer.message}")


def _seconds(timeout: float | None) -> int:
    """Returns how long one request waits, in seconds."""
    return _POLL_S if timeout is None else max(0, int(min(_POLL_S, timeout)))


async def _polled(
    http: Http, read: Callable[[int, RetryBudget], Awaitable[Reply | None]], timeout: float | None
) -> Reply | None:
    """Polls until there is a reply or the time is over. Temporary errors are retried."""
    end = None if timeout is None else time.monotonic() + timeout
    try:
        # Limits the wait in case the gateway hangs. At least one request is made.
        async with asyncio.timeout(None if timeout is None else max(_ONE_LOOK_S, timeout)):
            while True:
                began = time.monotonic()
                left = None if end is None else end - began
                wait = _seconds(left)
                found = await read(wait, http.retries(None))
                if found is not None or (left is not None and left <= 0):
                    return found
                # A gateway that responds early, for example because it shuts down, must not cause a busy loop.
                if time.monotonic() - began < max(wait, 1) / 2:
                    await asyncio.sleep(_LOOK_AGAIN_S if left is None else min(_LOOK_AGAIN_S, left))
    except TimeoutError:
        return None
