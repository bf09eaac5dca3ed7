"""What a function returned, as it goes to the worker; and what is told where it cannot go there: the function has done its work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tickfleet._tool import Tool
from tickfleet.host import _failures, _frames


class Withheld(Exception):
    """What a function returned cannot be encoded.

    Attributes:
        why: In words for a model, about what the tool returned.
        log: The same for whoever can mend it.
    """

    def __init__(self, why: str, log: str) -> None:
        super().__init__(log)
        self.why = why
        self.log = log

    @classmethod
    def too_large(cls, tool: Tool, output: str, error: _frames.FrameTooLarge) -> Withheld:
        """It does not fit into a frame."""
        # As others say it: HTTP tools, whose answers have a bound, too.
        less = ". Ask for less at a time" if tool.effect == "read" else ""
        why = f"takes more than {_frames.BOUND} to be passed on and is not shown{less}"
        size = f"{len(output.encode())} bytes of JSON, which makes {error}"
        return cls(why, f"what {tool.name} returned cannot be encoded: it has {size}")

    def answer(self, tool: Tool) -> dict[str, Any]:
        """How the call ends: told as a failure, whoever asked would do again what was done. To read again does no harm."""
        if tool.effect == "read":
            return {"error": {"kind": "permanent", "message": f"The tool ran, but its result {self.why}."}}
        note = f"The tool did what was asked. Its result {self.why}. Do not call this tool again to repeat it."
        return {"output": json.dumps({"executed": True, "note": note})}


def dump(tool: Tool, result: Any) -> str:
    """What a function returned, as JSON text.

    Raises:
        Withheld: It cannot be written as JSON.
    """
    if isinstance(result, Iterator):
        # What a generator does, it does while it is read: where it fails, the function has not come to its end.
        # Read by its own serializer, as an iterator: a list would show what the declared type leaves out.
        result = iter(list(result))
    try:
        return tool.dump(result)
    except BaseException as error:  # noqa: BLE001 - a serializer of the user's may do anything; the function has returned.
        why = "cannot be written as JSON and is not shown. The error has been logged for investigation"
        log = f"what {tool.name} returned cannot be written as JSON: {_failures.stack(error)}"
        raise Withheld(why, log) from error
