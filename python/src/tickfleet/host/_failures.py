"""Reports about exceptions. In logs, the stack has only the lines of the user's code."""

from __future__ import annotations

import importlib.util
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from tickfleet._errors import ToolError

_OTHERS = tuple(
    str(Path(path)) + "/"
    for path in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).resolve().parent.parent),
    )
)
#: The served modules count as the user's code, wherever they are installed.
_own: list[str] = []
#: Texts are limited, because they are sent in a frame and logged.
_CHARS_MAX = 8_000


def belongs_to_user(module: str) -> None:
    """Counts the package of a module as the user's code, wherever it is installed."""
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return
    if found is not None:
        folders = found.submodule_search_locations
        _own.extend([f"{folder}/" for folder in folders] if folders else [found.origin or ""])


def stack(error: BaseException) -> str:
    """Formats the exception with the lines in the user's files, the outermost call first."""
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
    """Returns the failure of a call in the worker's format."""
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
    """Returns the failure without details, and with a shortened message. Details may not be valid JSON. The
    failure's kind stays, because the worker's reaction depends on it."""
    return {**failure, "message": failure["message"][:_CHARS_MAX], "details": None}
