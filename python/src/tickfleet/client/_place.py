"""Where the fleet is, if the program names no URL."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

from tickfleet.client._transport import DEFAULT_URL, ApiKey

DEV_FILE = Path(".tickfleet/dev.json")
"""`tickfleet dev` writes this file in its working folder, and removes it at its end."""


def place(url: str | None, api_key: ApiKey | None) -> tuple[str, ApiKey | None]:
    """Returns the URL, and the API key if the URL is that of a gateway.

    The first that is set: the arguments, the variable ``REDIS_URL``, the variables ``FLEET_URL`` and ``FLEET_KEY`` of a
    gateway, the ``tickfleet dev`` of the working folder, the default Redis.

    Raises:
        ValueError: Nothing is set, and the client for Redis is not installed.
    """
    if url or api_key:
        return url or os.environ.get("FLEET_URL") or DEFAULT_URL, api_key
    if redis := os.environ.get("REDIS_URL"):
        return redis, None
    if gateway := os.environ.get("FLEET_URL"):
        return gateway, os.environ.get("FLEET_KEY")
    dev = _dev()
    if dev is None and find_spec("redis") is None:
        raise ValueError(
            "no fleet: run tickfleet dev in this folder, set FLEET_URL and FLEET_KEY of a gateway, or install "
            f"'tickfleet[redis]' and set REDIS_URL (default {DEFAULT_URL})"
        )
    return dev or (DEFAULT_URL, None)


def _dev() -> tuple[str, str | None] | None:
    try:
        # In a shared folder, another user's fleet could otherwise receive the calls.
        if DEV_FILE.stat().st_uid != os.geteuid():
            return None
        dev = json.loads(DEV_FILE.read_text())
    except (OSError, ValueError):
        return None
    if dev.get("fleet_url"):
        return dev["fleet_url"], dev["fleet_key"]
    # A fleet without a console has no gateway, so clients use its Redis.
    return dev["redis_url"], None
