"""What a fleet is asked, whichever way it is reached: the interface of `Direct` (Redis) and `Gateway` (HTTP)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from typing_extensions import TypedDict

from tickfleet.client._errors import Unsupported
from tickfleet.client._events import Event
from tickfleet.client._replies import Replies
from tickfleet.client._reply import Reply

Kind = Literal["turn", "task"]

ApiKey = str | Callable[[], str]
"""API key of a gateway, or token of its identity provider, or a function that returns one and is called for each
request."""

DEFAULT_URL = "redis://127.0.0.1:6379"
"""Redis, if no URL is passed and the variable `REDIS_URL` is unset."""

PATIENCE = 10.0
"""Seconds for which a lost connection is tried again, where nobody says otherwise."""


class DirectOptions(TypedDict, total=False):
    """What is to be known of a fleet that is reached through Redis; a gateway knows it itself."""

    namespace: str | None
    shards: int | None
    inbox: str | None
    turns_max: int | None
    turns_bytes_max: int | None


class FleetOptions(DirectOptions, total=False):
    """The arguments of `AsyncFleet` beside the URL."""

    api_key: ApiKey | None
    tenant: str | None
    patience: float


class Awaited(Protocol):
    """A turn or task whose reply somebody may wait for."""

    @property
    def pending(self) -> list[Reply]:
        """What was told before its end."""

    async def reply(self, timeout: float | None) -> Reply | None:
        """The reply, also one that refuses; none where none came in time."""


class Transport(Protocol):
    """One way to a fleet."""

    @property
    def inbox(self) -> str | None:
        """Where replies to this process go; none where that is not the client's business."""

    def whose(self, tenant: str | None) -> str | None:
        """The tenant, checked; none where the key says it."""

    async def submit(self, kind: Kind, tenant: str | None, message: dict[str, Any], is_given: bool, waits: bool) -> Awaited:
        """Submits a message whose id somebody gave or not. With `waits` its reply is waited for next, so that both may be
        one request."""

    async def send(self, kind: Kind, tenant: str | None, message: dict[str, Any]) -> None:
        """Submits a message whose reply nobody here waits for."""

    async def wait(self, tenant: str | None, id: str, timeout: float | None) -> Reply | None:
        """The reply to what somebody submitted; none where none came in time."""

    async def reply(self, tenant: str | None, id: str) -> Reply | None:
        """The reply as it is recorded; none where there is none."""

    async def tools(self, tenant: str | None, agent: str, dialect: str) -> Any:
        """What a model is told of an agent's tools."""

    async def cancel(self, kind: Kind, tenant: str | None, id: str, reason: str) -> None:
        """Asks for the end of a turn or task."""

    def follow(self, tenant: str | None, task_id: str, position: int) -> AsyncGenerator[Event, None]:
        """What happens to a task, from a position on. Whoever listens no more closes it."""

    def replies(self, tenant: str | None, inbox: str, check: Callable[[], None]) -> Replies:
        """A reader of an inbox, which asks first whether its caller may read."""

    async def close(self) -> None:
        """Ends what is open."""


def transport(url: str, api_key: ApiKey | None, patience: float, options: DirectOptions) -> Transport:
    """The way that a URL names. Nothing is connected to yet, and only what this way needs is imported.

    Raises:
        ValueError: The URL or the key cannot be read.
        Unsupported: An option makes no sense for a gateway.
    """
    if urlsplit(url).scheme in ("http", "https"):
        if said := sorted(key for key, value in options.items() if value is not None):
            raise Unsupported(f"{', '.join(said)}: only for Redis; omit it with a gateway")
        if api_key is None:
            raise ValueError("a gateway requires an API key: set api_key=…")
        from tickfleet.client._gateway import Gateway

        return Gateway(url, api_key, patience)
    if api_key is not None:
        raise ValueError("api_key is for gateways (http://, https://); Redis has user and password in its URL")
    from tickfleet.client._direct import Direct

    return Direct(url, patience, options)
