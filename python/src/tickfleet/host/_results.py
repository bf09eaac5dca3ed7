"""Encodes results for the worker. If a result cannot be encoded, the response states that the function has run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tickfleet._image import content_blocks
from tickfleet._tool import Tool
from tickfleet.host import _failures, _frames


class Withheld(Exception):
    """A result that cannot be encoded.

    Attributes:
        why: The reason for the model, as the predicate of a sentence about the result.
        log: The reason for the log.
    """

    def __init__(self, why: str, log: str) -> None:
        super().__init__(log)
        self.why = why
        self.log = log

    @classmethod
    def too_large(cls, tool: Tool, output: str, error: _frames.FrameTooLarge) -> Withheld:
        """Returns the exception for a result that does not fit into a frame."""
        # The wording is the same as for HTTP tools.
        less = ". Ask for less at a time" if tool.effect == "read" else ""
        why = f"needs more than {_frames.BOUND} when it is encoded and is not shown{less}"
        size = f"{len(output.encode())} bytes of JSON, which makes {error}"
        return cls(why, f"the result of {tool.name} cannot be encoded: it has {size}")

    def answer(self, tool: Tool) -> dict[str, Any]:
        """Returns the result that ends the call. A failure would make the model repeat the call, which is harmless
        only for reads. Therefore only reads get a failure."""
        if tool.effect == "read":
            return {"error": {"kind": "permanent", "message": f"The tool ran, but its result {self.why}."}}
        note = f"The call succeeded. Its result {self.why}. Do not call this tool again to repeat it."
        return {"output": json.dumps({"executed": True, "note": note})}


def dump(tool: Tool, result: Any) -> dict[str, Any]:
    """Returns the message fields of a function's result.

    Raises:
        Withheld: The result cannot be encoded as JSON.
    """
    if isinstance(result, Iterator):
        # A generator works while it is read. After an error of the generator, the function has not completed.
        result = iter(list(result))
    try:
        output = {"output": tool.dump(result)}
        return output if content_blocks(result) is None else output | {"content_blocks": True}
    except BaseException as error:  # noqa: BLE001 - a user's serializer may do anything; the function has returned.
        why = "cannot be written as JSON and is not shown. The error has been logged for investigation"
        log = f"the result of {tool.name} cannot be written as JSON: {_failures.stack(error)}"
        raise Withheld(why, log) from error
