"""Serves calls, up to the agreed concurrency: asynchronous tools in the event loop, synchronous ones in threads."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tickfleet._context import Caller, Context, Reporter
from tickfleet._tool import Tool, registered
from tickfleet.host import _failures, _frames, _results
from tickfleet.host._inner import InnerCalls
from tickfleet.host._progress import Progress

_LINE_CHARS_MAX = 4_000
_CANCELLED = {"kind": "cancelled", "message": "It was canceled."}
#: Levels of Python's `logging`, each with the worker's name for the level.
_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))


class Host:
    """The tool process' side of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, concurrency: int) -> None:
        self._reader = reader
        self._writer = writer
        self._tools = {tool.name: tool for tool in registered()}
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="tool")
        self._running: dict[int, tuple[asyncio.Task[None], Context]] = {}
        self._loop = asyncio.get_running_loop()
        self._inner = InnerCalls(self.send, self._loop)
        self._progress = Progress(self.send, self._loop)

    async def serve(self) -> None:
        """Handles messages until the worker ends the connection."""
        self.send({"type": "ready", "protocol": 1})
        while (message := await _frames.read(self._reader)) is not None:
            kind = message.get("type")
            if kind == "call":
                self._begin(message)
            elif kind == "inner":
                self._inner.ended(message)
            elif kind == "cancel":
                self._cancel(message["id"])
            elif kind == "describe":
                self.send({"type": "tools", "tools": [tool.definition() for tool in self._tools.values()]})
            elif kind == "bye":
                break
        # The worker has ended, or needs no more results.
        for task, context in self._running.values():
            context.cancelled.cancel()
            task.cancel()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message. A message above the bound is a bug of the caller."""
        self._writer.write(_frames.encode(message))

    def _begin(self, message: dict[str, Any]) -> None:
        identity: int = message["id"]
        tool = self._tools.get(message["tool"])
        if tool is None:
            failure = {"kind": "internal", "message": f"no tool {message['tool']!r} is registered here"}
            self.send({"type": "result", "id": identity, "error": failure})
            return
        context = self._context(message["context"], self._inner.of(identity), self._progress.of(identity))
        task = self._loop.create_task(self._call(identity, tool, message["arguments"], context))
        self._running[identity] = (task, context)
        task.add_done_callback(lambda _: self._never_began(identity))

    def _never_began(self, identity: int) -> None:
        """Sends the result of a call that was canceled before its first step."""
        if self._running.pop(identity, None) is not None:
            self.send({"type": "result", "id": identity, "error": _CANCELLED})

    def _context(self, facts: dict[str, Any], caller: Caller, reporter: Reporter) -> Context:
        logger = logging.Logger(f"tickfleet.tool.{facts['call_id']}", logging.INFO)
        logger.addHandler(_ToWorker(self, facts["call_id"]))
        # The deadline of the call applies if it is earlier than that of the attempt.
        deadline = time.time() + facts.pop("timeout_ms") / 1000
        if (end := facts.pop("deadline_ms", None)) is not None:
            deadline = min(deadline, end / 1000)
        return Context(**facts, deadline=deadline, log=logger, caller=caller, reporter=reporter)

    def _cancel(self, identity: int) -> None:
        if (running := self._running.get(identity)) is not None:
            task, context = running
            context.cancelled.cancel()
            self._inner.give_up(identity)
            # A synchronous tool cannot be interrupted. The tool checks for the cancellation, or the worker ends the
            # process.
            task.cancel()

    async def _call(self, identity: int, tool: Tool, arguments: str, context: Context) -> None:
        answer: dict[str, Any] = {"type": "result", "id": identity}
        try:
            answer |= await self._run(tool, arguments, context)
        except _results.Withheld as withheld:
            answer |= self._withheld(tool, context, withheld)
        except BaseException as error:  # noqa: BLE001 - a tool that calls sys.exit() fails, and ends nothing else.
            answer["error"] = _CANCELLED if context.cancelled.requested else _failures.of(error)
        finally:
            del self._running[identity]
            self._inner.give_up(identity)
            self._progress.ended(identity)
        try:
            self.send(answer)
        except (_frames.FrameTooLarge, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, _frames.FrameTooLarge) and "output" in answer:
                ended = self._withheld(tool, context, _results.Withheld.too_large(tool, answer["output"], error))
            else:
                self._log(context, f"the failure of {tool.name} is reported without its details: {error}")
                ended = {"error": _failures.bare(answer["error"])}
            self.send({"type": "result", "id": identity, **ended})
        await self._writer.drain()

    def _withheld(self, tool: Tool, context: Context, withheld: _results.Withheld) -> dict[str, Any]:
        """Returns the result of a call if the function has returned but its return value cannot be sent."""
        self._log(context, withheld.log)
        return withheld.answer(tool)

    def _log(self, context: Context, line: str) -> None:
        """Writes an error to the worker's log directly, because the tool's own logger may drop it."""
        self.send({"type": "log", "call": context.call_id, "level": "error", "message": line[:_LINE_CHARS_MAX]})

    async def _run(self, tool: Tool, arguments: str, context: Context) -> dict[str, Any]:
        keywords = tool.bind(arguments, context)
        if tool.is_async:
            return _results.dump(tool, await tool.function(**keywords))

        def run() -> dict[str, Any]:
            try:
                result = tool.function(**keywords)
            except StopIteration as error:
                # A future cannot carry a StopIteration.
                raise RuntimeError("the tool raised StopIteration") from error
            return _results.dump(tool, result)

        copied = contextvars.copy_context()
        future = self._loop.run_in_executor(self._threads, copied.run, run)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The tool occupies the thread until it ends. The call counts as running until the thread is free.
            await _ended(future)
            raise


async def _ended(future: asyncio.Future[dict[str, Any]]) -> None:
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    future.exception()


class _ToWorker(logging.Handler):
    """Sends a tool's log records to the worker, which redacts secrets."""

    def __init__(self, host: Host, call: str) -> None:
        super().__init__()
        self._host = host
        self._call = call

    def emit(self, record: logging.LogRecord) -> None:
        level = next((word for least, word in _LEVELS if record.levelno >= least), "debug")
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + _failures.stack(record.exc_info[1])
        line = {"type": "log", "call": self._call, "level": level, "message": text[:_LINE_CHARS_MAX]}
        if threading.current_thread() is threading.main_thread():
            self._host.send(line)
        else:
            self._host._loop.call_soon_threadsafe(self._host.send, line)
