"""For tests: calls a tool as a worker does, and starts a fleet for tests of a policy or an agent.

::

    with testing.fleet("conf") as shop:
        reply = shop.client.run("support", calls=[testing.tool_call("refund_order", order="A-1001", amount=15)])
        assert reply.ok and shop.effects("refund_order") == 1

:class:`ScriptedModel` plays a model in a test of the whole loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from tickfleet import _tool
from tickfleet._context import Context
from tickfleet._test_fleet import ScriptedModel, TestFleet, fleet, tool_call

__all__ = ["ScriptedModel", "TestFleet", "call", "context", "fleet", "tool_call"]


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


# The function `call` has a parameter with the name `context`.
_context = context
