"""Calls tools as a worker does, for tests without a worker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from tickfleet import _tool
from tickfleet._context import Context


def context(*, timeout: float = 30.0, **facts: Any) -> Context:
    """Returns the context of a call with ``timeout`` seconds left. ``facts`` are attributes of :class:`Context`."""
    given: dict[str, Any] = {
        "tenant": "acme",
        "agent": "kelly",
        "call_id": "t1/0",
        "idempotency_key": "key-1",
        "deadline": time.time() + timeout,
    }
    return Context(**{**given, **facts})


def call(
    function: Callable[..., Any], arguments: dict[str, Any] | None = None, *, context: Context | None = None
) -> Any:
    """Calls a tool with JSON arguments, as a model would, and returns the JSON result.

    Raises:
        ToolError: The arguments are invalid, or the tool failed.
    """
    made = _tool.of(function)
    keywords = made.bind(json.dumps(arguments or {}), context or _context())
    result = made.function(**keywords)
    if made.is_async:
        result = asyncio.run(result)
    return json.loads(made.dump(result))


# `call` has a parameter of the same name.
_context = context
