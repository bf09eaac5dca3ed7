"""A tool that writes files, only into the workspace of the calling tenant."""

import os
import re
from pathlib import Path

from pydantic import BaseModel

from tickfleet import Context, ToolError, tool

STEPS_MAX = 8
CHARS_MAX = 100_000
STEP = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


class Written(BaseModel):
    """The written file."""

    path: str
    bytes: int


@tool(effect="idempotent", category="examples")
def write_file(path: str, content: str, context: Context) -> Written:
    """Writes a text file into the workspace. A file that is there already is replaced.

    Args:
        path: Where in the workspace, such as notes/today.md. Folders that are missing are made.
        content: The whole text of the file, at most 100000 characters.
    """
    steps = path.split("/")
    if len(steps) > STEPS_MAX or not all(STEP.fullmatch(step) for step in steps):
        raise ToolError.invalid_arguments(f"{path!r} is no path here: names of letters, digits, _ - and . with / between.")
    if len(content) > CHARS_MAX:
        raise ToolError.invalid_arguments(f"The content has more than {CHARS_MAX} characters.")
    workspace = (Path("data") / context.tenant / "workspace").resolve()
    target = workspace.joinpath(*steps)
    # An existing link must not lead out of the workspace.
    if not target.parent.resolve().is_relative_to(workspace):
        raise ToolError.permanent(f"{path!r} leads out of the workspace.")
    target.parent.mkdir(parents=True, exist_ok=True)
    # A reader never sees an incomplete file, because the draft is moved. The move replaces an existing link.
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(content, encoding="utf-8")
    draft.replace(target)
    return Written(path=path, bytes=len(content.encode()))
