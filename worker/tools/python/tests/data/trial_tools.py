"""Well-behaved and misbehaving tools."""

import asyncio
import ctypes
import os
import subprocess
import sys
import tempfile
import time

from tickfleet import Context, ToolError, tool


@tool(effect="read")
def add(a: int, b: int = 2) -> dict[str, int]:
    """Adds.

    :param a: The one number.
    :param b: The other.
    """
    print("adding", a, b)
    return {"sum": a + b}


@tool(effect="read")
async def who(context: Context) -> dict[str, object]:
    """Returns the caller, and the process that runs the call."""
    return {"agent": context.agent, "process": os.getpid(), "left": context.remaining}


@tool(effect="read")
def nap(seconds: float) -> int:
    """Sleeps without checking for cancellation."""
    time.sleep(seconds)
    return os.getpid()


@tool(effect="read")
def meet(folder: str, count: int) -> int:
    """Waits until this number of calls run at the same time, without checking for cancellation."""
    tempfile.mkstemp(dir=folder)
    while len(os.listdir(folder)) < count:
        time.sleep(0.05)
    return os.getpid()


@tool(effect="read")
async def wait(seconds: float) -> int:
    """Sleeps; ends early if it is canceled."""
    await asyncio.sleep(seconds)
    return os.getpid()


@tool(effect="once")
def crash() -> None:
    """Crashes its process."""
    ctypes.string_at(0)


@tool(effect="read")
def large(count: int) -> str:
    """Returns this many bytes."""
    return "x" * count


@tool(effect="read")
def rogue() -> None:
    """Writes garbage to all open descriptors, among them the host's socket."""
    for number in range(3, 64):
        try:
            os.write(number, b"\xff" * 64)
        except OSError:
            pass
    time.sleep(1)


_kept: list[bytes] = []


@tool(effect="read")
def grow(mebibytes: int) -> int:
    """Allocates memory and keeps it."""
    _kept.append(os.urandom(mebibytes << 20))
    return os.getpid()


@tool(effect="read")
def leave_behind() -> list[int]:
    """Starts a process in its group, and one that leaves the group and soon has no parent."""
    near = subprocess.Popen(["sleep", "600"])
    script = """
import subprocess as s
print(s.Popen(['sleep', '600'], start_new_session=True, stdout=s.DEVNULL, stderr=s.DEVNULL).pid)
"""
    far = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [near.pid, int(far.stdout)]


@tool(effect="read")
def environment() -> dict[str, str]:
    """Returns its environment variables."""
    return dict(os.environ)


@tool(effect="read")
def fail(how: str) -> None:
    """Fails."""
    if how == "transient":
        raise ToolError.transient("busy", retry_after=2, not_executed=True)
    if how == "permanent":
        raise ToolError.permanent("no", details={"why": 7})
    if how == "invalid":
        raise ToolError.invalid_arguments("not so")
    raise KeyError(how + os.environ.get("KEY", ""))


@tool(effect="idempotent")
async def relay(context: Context, tool: str, text: str) -> dict[str, object]:
    """Calls another tool twice."""
    first = await context.call(tool, {"text": text})
    second = await context.call(tool, {"text": f"{text} again"})
    return {"first": first.unwrap(), "second": second.output, "why": second.error}


@tool(effect="idempotent")
def relay_blocking(context: Context, tool: str, text: str) -> object:
    """Calls another tool from a thread."""
    try:
        return context.call_blocking(tool, {"text": text}).unwrap()
    except Exception as error:  # This must not catch the exception that suspends the function.
        return repr(error)
