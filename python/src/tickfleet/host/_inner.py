"""Inner calls: a tool calls another tool. The worker makes the call, and sends the result."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Callable
from typing import Any

from tickfleet._context import Caller, InnerResult
from tickfleet._errors import ToolError
from tickfleet.host import _frames

#: Calls of other tools per call. The worker has the same maximum.
_CALLS_MAX = 32

_Future = concurrent.futures.Future[InnerResult]


class InnerCalls:
    """The inner calls of all running calls."""

    def __init__(self, send: Callable[[dict[str, Any]], None], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: dict[int, dict[int, _Future]] = {}

    def of(self, identity: int) -> Caller:
        """Returns the caller for inner calls of the call ``identity``."""
        made = 0

        def call(tool: str, arguments: dict[str, Any], /) -> _Future:
            nonlocal made
            # The tool receives an encoding error only if the arguments are encoded here.
            text = json.dumps(arguments)
            future: _Future = concurrent.futures.Future()
            with self._lock:
                made += 1
                if made > _CALLS_MAX:
                    raise ToolError.permanent(f"a call makes at most {_CALLS_MAX} calls of other tools")
                number = made
                self._waiting.setdefault(identity, {})[number] = future
            message = {"type": "inner", "id": identity, "number": number, "tool": tool, "arguments": text}
            self._loop.call_soon_threadsafe(self._ask, message, future)
            return future

        return call

    def _ask(self, message: dict[str, Any], future: _Future) -> None:
        try:
            self._send(message)
        except _frames.FrameTooLarge as error:
            future.set_exception(ToolError.permanent(f"{message['tool']} was not called: {error}"))

    def ended(self, message: dict[str, Any]) -> None:
        """Delivers the result of an inner call."""
        with self._lock:
            future = self._waiting.get(message["id"], {}).pop(message["number"], None)
        if future is not None and not future.cancelled():
            output = message.get("output")
            value = None if output is None else json.loads(output)
            future.set_result(InnerResult(message["outcome"], value, message.get("error")))

    def give_up(self, identity: int) -> None:
        """Cancels the inner calls of a call whose result is no longer needed."""
        with self._lock:
            waiting = self._waiting.pop(identity, {})
        for future in waiting.values():
            future.cancel()
