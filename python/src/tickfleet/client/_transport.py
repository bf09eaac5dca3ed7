"""The operations of a fleet, over any transport: the interface of `Direct` (Redis) and `Gateway` (HTTP)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from typing_extensions import TypedDict

from tickfleet.client._errors import Unsupported
from tickfleet.client._events import Event
from tickfleet.client._replies import Replies
from tickfleet.client._reply import PendingApproval, Reply

Kind = Literal["turn", "task"]

ApiKey = str | Callable[[], str]
"""API key of a gateway, or token of its identity provider, or a function that returns one and is called for each
request."""

DEFAULT_URL = "redis://127.0.0.1:6379"
"""Redis, if no URL is passed and the variable `REDIS_URL` is unset."""

RETRY_TIMEOUT = 10.0
"""Default duration of retries after a lost connection, in seconds."""


class DirectOptions(TypedDict, total=False):
    """Options of a fleet over Redis. A gateway has these options in its own configuration."""

    namespace: str | None
    shards: int | None
    inbox: str | None
    turns_max: int | None
    turns_bytes_max: int | None


class FleetOptions(DirectOptions, total=False):
    """The arguments of `AsyncFleet` except the URL."""

    api_key: ApiKey | None
    tenant: str | None
    retry_timeout: float


@dataclass(frozen=True)
class Claim:
    """A call of a local tool that this process has claimed."""

    lease: str
    """Identifies the claim."""
    arguments: dict[str, Any]
    """The arguments, as approvers may have changed them."""
    lease_ms: int
    """The claim ends after this time without a heartbeat."""

    @classmethod
    def of(cls, lease: str, call: dict[str, Any]) -> Claim:
        """Reads the fleet's message about the call."""
        return cls(lease, dict(call["arguments"]), int(call["lease_ms"]))


class Awaited(Protocol):
    """A turn or task whose reply can be awaited."""

    @property
    def pending(self) -> list[Reply]:
        """Replies before the end."""
        ...

    async def reply(self, timeout: float | None) -> Reply | None:
        """Returns the reply, even if it is a rejection. ``None`` if no reply arrived in time."""

    async def reply_or_approval(self, timeout: float | None) -> Reply | PendingApproval | None:
        """Like `reply`, but also ends when a call waits for an approval."""


class Transport(Protocol):
    """A transport to a fleet."""

    @property
    def inbox(self) -> str | None:
        """The inbox for replies to this process. ``None`` if the transport needs none."""

    def tenant_of(self, tenant: str | None) -> str | None:
        """Returns the checked tenant. ``None`` if a gateway derives the tenant from the key."""

    async def submit(self, kind: Kind, tenant: str | None, message: dict[str, Any], is_given: bool, waits: bool) -> Awaited:
        """Submits a message. `is_given` states whether the caller gave the id. With `waits`, the reply is awaited next,
        so that one request can do both."""
        ...

    async def send(self, kind: Kind, tenant: str | None, message: dict[str, Any]) -> None:
        """Submits a message without waiting for its reply."""

    async def wait(self, tenant: str | None, id: str, timeout: float | None) -> Reply | None:
        """Waits for the reply to a turn or task of any client. ``None`` if no reply arrived in time."""

    async def reply(self, tenant: str | None, id: str) -> Reply | None:
        """Returns the reply in the record. ``None`` if the record has no reply."""

    async def tools(self, tenant: str | None, agent: str, dialect: str) -> Any:
        """Returns an agent's tool definitions for a model."""

    async def cancel(self, kind: Kind, tenant: str | None, id: str, reason: str) -> None:
        """Cancels a turn or task."""

    async def claim(self, tenant: str | None, id: str, claimant: str, wait: int) -> Claim | Reply | None:
        """Claims the local call that a turn offers. A gateway waits for it, and may return the reply instead. ``None``
        if the turn offers no call."""

    async def report(self, tenant: str | None, id: str, report: dict[str, Any]) -> None:
        """Sends a heartbeat or the end of a claimed call."""

    def follow(self, tenant: str | None, task_id: str, position: int) -> AsyncGenerator[Event, None]:
        """Yields the events of a task from a position on. A caller that stops early closes the generator."""
        ...

    def replies(self, tenant: str | None, inbox: str, check: Callable[[], None]) -> Replies:
        """Returns a reader of an inbox, which calls `check` before each read."""
        ...

    async def close(self) -> None:
        """Closes all connections."""


def transport(url: str, api_key: ApiKey | None, retry_timeout: float, options: DirectOptions) -> Transport:
    """Returns the transport for a URL. Does not connect yet, and imports only the packages that this transport needs.

    Raises:
        ValueError: The URL or the key is invalid.
        Unsupported: An option does not apply to a gateway.
    """
    if urlsplit(url).scheme in ("http", "https"):
        if said := sorted(key for key, value in options.items() if value is not None):
            raise Unsupported(f"{', '.join(said)}: only for Redis; omit it with a gateway")
        if api_key is None:
            raise ValueError("a gateway requires an API key: set api_key=…")
        from tickfleet.client._gateway import Gateway

        return Gateway(url, api_key, retry_timeout)
    if api_key is not None:
        raise ValueError("api_key is for gateways (http://, https://); Redis has user and password in its URL")
    from tickfleet.client._direct import Direct

    return Direct(url, retry_timeout, options)
