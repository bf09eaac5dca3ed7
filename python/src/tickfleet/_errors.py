"""Failures of calls, and errors in declarations."""

from __future__ import annotations

from typing import Any, Literal

Kind = Literal["transient", "permanent", "invalid_arguments"]


class DuplicateTool(ValueError):
    """A tool of this name is already registered."""


class ToolError(Exception):
    """The failure of a call. The message is for the model: state what the model can do next, and include no secrets.

    Any other exception is a bug: the worker logs the stack trace, and the model receives a general message.

    Args:
        message: Message for the model.
        kind: ``permanent``: the call failed permanently. ``transient``: a retry can succeed; the worker retries if
            the tool's effect allows it. ``invalid_arguments``: the arguments have valid types but unusable values,
            and nothing was done.
        details: Details for programs, as JSON. Only for permanent failures.
        retry_after: Shortest wait before the next attempt, in seconds. Only for transient failures.
        not_executed: Whether it is certain that nothing took effect, so that a ``once`` tool can be retried. Only
            for transient failures.
    """

    def __init__(
        self,
        message: str,
        kind: Kind = "permanent",
        *,
        details: Any = None,
        retry_after: float | None = None,
        not_executed: bool = False,
    ) -> None:
        # Convert the message to text, because a caller may pass an exception that cannot be pickled.
        super().__init__(str(message))
        if retry_after is not None and not (isinstance(retry_after, (int, float)) and 0 <= retry_after < float("inf")):
            raise ValueError(f"retry_after is a number of seconds, not {retry_after!r}")
        if not isinstance(not_executed, bool):
            raise ValueError(f"not_executed is True or False, not {not_executed!r}")
        if kind not in ("transient", "permanent", "invalid_arguments"):
            raise ValueError(f"a ToolError is transient, permanent or invalid_arguments, not {kind!r}")
        if kind != "transient" and (retry_after is not None or not_executed):
            raise ValueError(f"retry_after and not_executed are for transient failures, not for {kind} ones")
        if kind != "permanent" and details is not None:
            raise ValueError(f"details are for permanent failures, not for {kind} ones")
        self.message = str(message)
        self.kind: Kind = kind
        self.details = details
        self.retry_after = retry_after
        self.not_executed = not_executed

    @classmethod
    def permanent(cls, message: str, *, details: Any = None) -> ToolError:
        """Returns a permanent failure."""
        return cls(message, "permanent", details=details)

    @classmethod
    def transient(
        cls, message: str, *, retry_after: float | None = None, not_executed: bool = False
    ) -> ToolError:
        """Returns a transient failure."""
        return cls(message, "transient", retry_after=retry_after, not_executed=not_executed)

    @classmethod
    def invalid_arguments(cls, message: str) -> ToolError:
        """Returns a failure for arguments with unusable values. Nothing was done."""
        return cls(message, "invalid_arguments")
