"""Tools in Python for Tickfleet: a function with type hints and a docstring becomes a tool that agents may call.

Start with :func:`tool`. A parameter of type :class:`Context` gets the facts of the call; :class:`ToolError` says how a
call failed. :mod:`tickfleet.testing` calls a tool as a worker would, without a worker.
"""

from tickfleet._context import Context, InnerResult
from tickfleet._errors import DuplicateTool, ToolError
from tickfleet._tool import Effect, Tool, registered, tool

__all__ = ["Context", "DuplicateTool", "Effect", "InnerResult", "Tool", "ToolError", "registered", "tool"]
