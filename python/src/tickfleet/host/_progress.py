"""Progress of running calls. Sends the latest report of each call, at most one per interval."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tickfleet._context import Reporter

#: Seconds between two reports about one call. The worker stores at most one report per second.
_INTERVAL_S = 0.5
#: Maximum characters of a report's text. The worker shortens the text further.
_CHARS_MAX = 500


class Progress:
    """The reports of all running calls."""

    def __init__(self, send: Callable[[dict[str, Any]], None], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._lock = threading.Lock()
        #: The latest report of each call. ``None`` means that the report was sent. A call without an entry has no
        #: timer.
        self._latest: dict[int, dict[str, Any] | None] = {}

    def of(self, identity: int) -> Reporter:
        """Returns the reporter of the call ``identity``. Any thread can use it."""

        def report(fraction: float | None, message: str, /) -> None:
            found = {"type": "progress", "id": identity, "fraction": fraction, "message": message[:_CHARS_MAX]}
            with self._lock:
                has_timer = identity in self._latest
                self._latest[identity] = found
            if not has_timer:
                self._loop.call_soon_threadsafe(self._flush, identity)

        return report

    def _flush(self, identity: int) -> None:
        with self._lock:
            latest = self._latest.get(identity)
            if latest is None:
                self._latest.pop(identity, None)
                return
            self._latest[identity] = None
        self._send(latest)
        self._loop.call_later(_INTERVAL_S, self._flush, identity)

    def ended(self, identity: int) -> None:
        """Drops the reports of a call that has ended."""
        with self._lock:
            self._latest.pop(identity, None)
