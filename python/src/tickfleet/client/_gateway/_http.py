"""Requests to a gateway, with retries."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

try:
    import httpx2 as httpx
except ImportError as error:  # pragma: no cover - names the package to install
    raise ImportError("a gateway needs httpx2: pip install tickfleet") from error

from tickfleet.client._errors import (
    FleetError,
    Forbidden,
    NotAccepted,
    MemoryPressure,
    QueueFull,
    Throttled,
    Unauthorized,
    Unavailable,
    Unsupported,
)
from tickfleet.client._transport import ApiKey

# Timeout of a response in seconds, in addition to the requested wait.
_ANSWER_S = 10.0

# Seconds before each retry; the last value is repeated.
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

# Maximum pause in seconds, even if the gateway requests a longer one, because the caller is waiting.
_PAUSE_MAX_S = 60.0

# Statuses after which the same request may succeed.
_PASSING = (429, 500, 502, 503, 504)

_SECRET = re.compile(r"[\x21-\x7e]+\Z")


@dataclass(frozen=True)
class Answer:
    """The response of a gateway."""

    status: int
    text: str
    retry_after: float | None = None
    waited: int = 0
    """Seconds that the request was allowed to wait."""

    @property
    def json(self) -> dict[str, Any]:
        """The response as an object. It is empty if a proxy has responded in another format."""
        try:
            value = json.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def read(self) -> Any:
        """Returns the JSON of the response.

        Raises:
            FleetError: The response is not JSON.
        """
        try:
            return json.loads(self.text)
        except ValueError as error:
            said = "the server is not a gateway: a proxy or another service answered without JSON"
            raise FleetError(said, "unreadable") from error

    @property
    def code(self) -> str:
        """The error code."""
        error = self.json.get("error")
        return str(error.get("code", "")) if isinstance(error, dict) else ""

    @property
    def message(self) -> str:
        """The error message."""
        error = self.json.get("error")
        said = error.get("message") if isinstance(error, dict) else None
        return str(said or f"status {self.status}")


class RetryBudget:
    """Retries until `retry_timeout` seconds after the first failure. If `retry_timeout` is ``None``, retries without a limit."""

    def __init__(self, retry_timeout: float | None, closed: asyncio.Event | None = None) -> None:
        self._retry_timeout = retry_timeout
        # If the client is closed, a pause ends early.
        self._closed = closed or asyncio.Event()
        self._end: float | None = None
        self._tries = 0

    async def pause(self, error: Exception, at_least: float | None = None) -> None:
        """Waits before the next attempt, at least as long as the gateway requests. Raises the error if the wait would
        exceed the retry timeout."""
        pause = _PAUSES[min(self._tries, len(_PAUSES) - 1)]
        # With jitter, requests that were rejected together are not repeated together.
        pause = max(pause, at_least or 0.0) * random.uniform(1.0, 1.25)
        self._tries += 1
        if self._end is None and self._retry_timeout is not None:
            self._end = time.monotonic() + self._retry_timeout
        if self._end is not None and time.monotonic() + pause >= self._end:
            raise error
        with suppress(TimeoutError):
            async with asyncio.timeout(min(pause, _PAUSE_MAX_S)):
                await self._closed.wait()


class Http:
    """A gateway's address and key, and the connections to it."""

    def __init__(self, url: str, api_key: ApiKey, retry_timeout: float) -> None:
        parts = urlsplit(url)
        odd = parts.query or parts.fragment or parts.username is not None
        if not parts.hostname or odd or parts.port == 0:
            raise ValueError("the URL cannot be read: expected http://host[:port][/path] or https://…, and the key as api_key")
        self._key = api_key if callable(api_key) else (lambda: api_key)
        if not callable(api_key):
            self._authorization()
        self.retry_timeout = retry_timeout
        self._closed = asyncio.Event()
        # Each waiting request has its own connection. The gateway limits the connections.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        # Redirects are not followed: the key must not reach another server.
        self._client = httpx.AsyncClient(base_url=url.rstrip("/"), limits=limits, follow_redirects=False)

    async def close(self) -> None:
        """Closes all connections. Waiting callers get an error."""
        self._closed.set()
        await self._client.aclose()

    def retries(self, retry_timeout: float | None) -> RetryBudget:
        """Returns retries that end when this client is closed."""
        return RetryBudget(retry_timeout, self._closed)

    def check_open(self) -> None:
        if self._closed.is_set():
            raise FleetError("the fleet's client was closed", "closed")

    async def ask(
        self,
        method: str,
        path: str,
        tenant: str | None,
        *,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        wait: int = 0,
        retries: RetryBudget | None = None,
        again: str | None = None,
    ) -> Answer:
        """Sends a request, with retries, and returns the response. The request must be safe to send twice. If `again`
        is given, later attempts use that path, which does not wait. The caller handles statuses about the request.

        Raises:
            Unauthorized, Forbidden: The key is invalid, or does not cover the request.
            QueueFull, MemoryPressure, Throttled: The request was not accepted in any attempt.
            Unavailable: No attempt got a response.
        """
        retries = retries or self.retries(self.retry_timeout)
        while True:
            self.check_open()
            try:
                response = await self._client.request(
                    method,
                    path,
                    content=None if body is None else body.encode(),
                    headers=self._headers(tenant, body is not None) | dict(headers or {}),
                    timeout=httpx.Timeout(wait + _ANSWER_S, connect=_ANSWER_S, pool=None),
                )
            except httpx.RequestError as error:
                self.check_open()
                await retries.pause(Unavailable(f"the gateway cannot be reached: {error or type(error).__name__}"))
                path, wait = (path, wait) if again is None else (again, 0)
                continue
            answer = answer_of(response.status_code, response.text, response.headers)
            if answer.status not in _PASSING:
                return replace(checked(answer), waited=wait)
            if answer.code == "too_many_waiting" and again is not None and wait:
                # Only the wait was rejected. The next request does not wait, and does not use up the retry timeout.
                path, wait = again, 0
                continue
            await retries.pause(passing(answer), answer.retry_after)
            if again is not None and answer.status >= 500:
                path, wait = again, 0

    @asynccontextmanager
    async def stream(self, path: str, tenant: str | None, position: int) -> AsyncIterator[httpx.Response]:
        """Opens a streamed response, without retries. The caller handles errors."""
        self.check_open()
        headers = self._headers(tenant, False) | {"accept": "text/event-stream"}
        if position:
            headers["last-event-id"] = str(position)
        # A gateway sends at least one line every 15 s, so a longer silence means that the stream is lost.
        timeout = httpx.Timeout(45.0, connect=_ANSWER_S, pool=None)
        async with self._client.stream("GET", path, headers=headers, timeout=timeout) as response:
            yield response

    def _authorization(self) -> str:
        key = self._key()
        if not _SECRET.match(key):
            # The message omits the key, because errors are logged.
            raise ValueError("the gateway's API key contains whitespace or non-ASCII characters")
        return f"Bearer {key}"

    def _headers(self, tenant: str | None, has_body: bool) -> dict[str, str]:
        headers = {"authorization": self._authorization(), "accept": "application/json"}
        if tenant is not None:
            headers["tickfleet-tenant"] = tenant
        return headers | ({"content-type": "application/json"} if has_body else {})


def segment(id: str) -> str:
    """Returns an id as a URL path segment. Its characters need no escaping.

    Raises:
        Unsupported: The id has another meaning in a URL.
    """
    if id in (".", ".."):
        raise Unsupported(f"the id {id} is not valid in a URL and cannot be used through a gateway")
    return id


def answer_of(status: int, text: str, headers: Mapping[str, str]) -> Answer:
    """Returns the response with the header that the client reads."""
    after = headers.get("retry-after", "")
    # Gateways send the header in seconds, never as a date.
    return Answer(status, text, float(after) if after.isdecimal() else None)


def checked(answer: Answer) -> Answer:
    """Returns the response, unless it rejects the key or redirects."""
    if answer.status == 401:
        raise Unauthorized(answer.message)
    if answer.status == 403:
        raise Forbidden(answer.message)
    if 300 <= answer.status < 400:
        raise FleetError(f"the URL redirects (status {answer.status}): use the gateway's own URL", "redirected")
    return answer


def passing(answer: Answer) -> FleetError:
    """Returns the error for a failure that may be temporary."""
    if answer.code in ("queue_full", "pressure"):
        error: FleetError = (QueueFull if answer.code == "queue_full" else MemoryPressure)(f"{answer.code}: {answer.message}")
    # With `too_many_waiting`, the turn was accepted, and only the wait was rejected.
    elif answer.status == 429 and answer.code != "too_many_waiting":
        error = Throttled(answer.code or "too_many_requests", answer.message)
    else:
        return Unavailable(f"the gateway failed: {answer.message}")
    if isinstance(error, NotAccepted):
        error.retry_after = answer.retry_after
    return error
