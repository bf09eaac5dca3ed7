"""What is told of an exception: the stack to a log, and of a stack only the lines that the user wrote."""

from __future__ import annotations

import importlib.util
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from tickfleet._errors import ToolError

#: Folders with code that is not the user's.
_OTHERS = tuple(
    str(Path(path)) + "/"
    for path in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).resolve().parent.parent),
    )
)
#: Folders and files of the modules that are served: the user's own, wherever they are installed.
_own: list[str] = []
#: Characters of a text: it goes into a frame and a log.
_CHARS_MAX = 8_000


def belongs_to_user(module: str) -> None:
    """Counts the package of a module as the user's own, wherever it lies."""
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return
    if found is not None:
        folders = found.submodule_search_locations
        _own.extend([f"{folder}/" for folder in folders] if folders else [found.origin or ""])


def stack(error: BaseException) -> str:
    """The exception with the lines of the user's own files, the outermost first."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    lines += traceback.format_exception_only(type(error), error)
    text = "".join(lines).rstrip()
    return text if len(text) <= _CHARS_MAX else text[: _CHARS_MAX // 2] + "\n…\n" + text[-_CHARS_MAX // 2 :]


def _is_own(file: str) -> bool:
    if file.startswith(tuple(filter(None, _own))):
        return True
    return not file.startswith(("<frozen", *_OTHERS))


def of(error: BaseException) -> dict[str, Any]:
    """The failure of a call, for the worker."""
    if isinstance(error, ToolError):
        return {
            "kind": error.kind,
            "message": error.message,
            "details": error.details,
            "retry_after": error.retry_after,
            "not_executed": error.not_executed,
        }
    return {"kind": "internal", "message": stack(error)}


def bare(failure: dict[str, Any]) -> dict[str, Any]:
    """A failure without what may not be JSON, or too long. What kind it is stays: the worker goes by it."""
    return {**failure, "message": failure["message"][:_CHARS_MAX], "details": None}
