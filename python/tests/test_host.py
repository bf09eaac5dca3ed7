"""Tests of the host. The test is the worker at the other end of the socket."""

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent.parent / "src"

TOOLS = '''
import asyncio, os, subprocess, sys, threading, time
from collections.abc import Iterable
from pydantic import BaseModel, model_serializer
from tickfleet import Context, Image, ToolError, tool

print("printed while it is imported")

@tool(effect="read")
def add(a: int, b: int = 2) -> dict[str, int]:
    """Adds."""
    print("printed by a tool")
    os.write(1, b"written past Python")
    return {"sum": a + b}

@tool(effect="read")
def facts(context: Context) -> dict[str, object]:
    """Tells."""
    context.log.warning("looked at %s", context.agent)
    return {"tenant": context.tenant, "key": context.idempotency_key, "left": context.remaining > 1,
            "stdin": sys.stdin.read()}

@tool(effect="read")
def work(steps: int, context: Context) -> str:
    """Works in steps, and reports each."""
    for step in range(steps):
        context.progress(step / steps, f"step {step} \\ud800" + "x" * 1000)
        context.cancelled.wait(0.02)
    return "done"

@tool(effect="read")
async def wait() -> None:
    """Waits."""
    await asyncio.sleep(60)

@tool(effect="read")
def sleep() -> None:
    """Sleeps, and ignores cancellation."""
    time.sleep(600)

@tool(effect="read")
def wait_in_a_thread(context: Context) -> None:
    """Waits."""
    context.cancelled.wait(60)
    context.cancelled.check()

gate = threading.Barrier(3)

@tool(effect="read")
def meet() -> int:
    """Comes back when three are there."""
    return gate.wait(20)

@tool(effect="read")
def fail(how: str) -> object:
    """Fails."""
    if how == "exit":
        sys.exit(3)
    if how == "transient":
        raise ToolError.transient("busy", retry_after=2, not_executed=True)
    return {}[how]

@tool(effect="read")
def refuse(why: str, context: Context) -> None:
    """Fails, with details that are not valid JSON."""
    context.log.warning("half a pair: \\ud800")
    deep = []
    for _ in range(100_000):
        deep = [deep]
    details = {"object": object(), "nan": float("nan"), "large": "x" * 5_000_000, "deep": deep, "pair": "\\ud800", "none": None}
    raise ToolError.permanent(ValueError("no \\ud800 cover"), details=details[why])

class Odd(BaseModel):
    """Its serializer has a bug."""

    @model_serializer
    def write(self) -> dict[str, int]:
        return {}["odd"]

circle = []
circle.append(circle)
GIVEN = {"large": "x" * 10_000_000, "object": {"a": object()}, "surrogate": "\\ud800", "circle": circle, "odd": Odd(), "nan": {"a": float("nan")}}

@tool(effect="read")
def look(what: str) -> object:
    """Returns it."""
    return GIVEN[what]

@tool(effect="once")
def pay(what: str) -> object:
    """Returns it, when it has paid."""
    return GIVEN[what]

class Public(BaseModel):
    name: str

class User(Public):
    secret: str

@tool(effect="read")
def people() -> Iterable[Public]:
    """Lists people."""
    yield User(name="ann", secret="hidden")

@tool(effect="read")
def chart(size: int) -> list[str | Image]:
    """Draws."""
    return ["a chart", Image(b"GIF89a" + b"x" * size)]

@tool(effect="once")
def pay_each(count: int) -> list[int]:
    """Pays one after the other."""
    for number in range(count):
        if number == 2:
            raise KeyError("no cover")
        yield number

@tool(effect="idempotent")
async def put(what: str) -> object:
    """Returns it, when it has put something."""
    return GIVEN[what]
'''


class Host:
    """A host process. The test is its worker."""

    def __init__(self, folder: Path, *modules: str) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(30)
        command = [sys.executable, "-m", "tickfleet.host", "--fd", "0", "--path", str(folder), "--concurrency", "4"]
        environment = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]}
        self.process = subprocess.Popen(
            [*command, *modules], stdin=theirs, stderr=subprocess.PIPE, env=environment, start_new_session=True
        )
        theirs.close()

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self.ours.sendall(struct.pack(">I", len(body)) + body)

    def hear(self) -> dict[str, Any]:
        (length,) = struct.unpack(">I", self._exactly(4))
        message: dict[str, Any] = json.loads(self._exactly(length))
        return message

    def _exactly(self, count: int) -> bytes:
        read = b""
        while len(read) < count:
            more = self.ours.recv(count - len(read))
            assert more, "the host has gone"
            read += more
        return read

    def call(self, identity: int, tool: str, **arguments: Any) -> None:
        context = {"tenant": "acme", "agent": "kelly", "call_id": "t1/0", "idempotency_key": "k", "timeout_ms": 9000}
        arguments_text = json.dumps(arguments)
        self.send({"type": "call", "id": identity, "tool": tool, "arguments": arguments_text, "context": context})

    def answer(self, identity: int, tool: str, **arguments: Any) -> dict[str, Any]:
        self.call(identity, tool, **arguments)
        answer = self.hear()
        assert answer["id"] == identity
        return answer


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "shop.py").write_text(TOOLS)
    host = Host(tmp_path, "shop")
    assert host.hear() == {"type": "ready", "protocol": 1}
    yield host
    host.ours.close()
    host.process.wait(20)


def test_the_host_describes_and_calls_tools_and_printed_output_breaks_no_frame(host: Host):
    host.send({"type": "describe"})
    tools = host.hear()["tools"]
    assert [tool["name"] for tool in tools] == [
        "add", "chart", "facts", "fail", "look", "meet", "pay", "pay_each", "people", "put", "refuse", "sleep", "wait",
        "wait_in_a_thread", "work",
    ]  # fmt: skip
    assert json.loads(host.answer(1, "add", a=3)["output"]) == {"sum": 5}
    host.send({"type": "bye"})
    _, said = host.process.communicate(timeout=20)
    for text in (b"printed while it is imported", b"printed by a tool", b"written past Python"):
        assert text in said


def test_a_call_receives_its_context_and_logs_through_the_worker(host: Host):
    host.call(1, "facts")
    assert host.hear() == {"type": "log", "call": "t1/0", "level": "warn", "message": "looked at kelly"}
    facts = json.loads(host.hear()["output"])
    assert facts == {"tenant": "acme", "key": "k", "left": True, "stdin": ""}


def test_calls_run_concurrently(host: Host):
    for identity in range(3):
        host.call(identity, "meet")
    assert sorted(host.hear()["id"] for _ in range(3)) == [0, 1, 2]


@pytest.mark.parametrize("tool", ["wait", "wait_in_a_thread"])
def test_a_canceled_call_ends_and_the_next_one_runs(host: Host, tool: str):
    host.call(1, tool)
    assert "output" in host.answer(2, "add", a=1)
    host.send({"type": "cancel", "id": 1})
    assert host.hear() == {"type": "result", "id": 1, "error": {"kind": "cancelled", "message": "It was canceled."}}
    assert "output" in host.answer(3, "add", a=1)


def test_a_call_canceled_before_its_start_has_a_result(host: Host):
    frames = b""
    for message in (
        {"type": "call", "id": 1, "tool": "wait", "arguments": "{}", "context": {
            "tenant": "a", "agent": "b", "call_id": "c", "idempotency_key": "d", "timeout_ms": 9000}},
        {"type": "cancel", "id": 1},
    ):  # fmt: skip
        body = json.dumps(message).encode()
        frames += struct.pack(">I", len(body)) + body
    host.ours.sendall(frames)
    assert host.hear()["error"]["kind"] == "cancelled"


def test_every_failure_is_reported_and_the_host_continues(host: Host):
    error = host.answer(1, "fail", how="transient")["error"]
    assert (error["kind"], error["retry_after"], error["not_executed"]) == ("transient", 2, True)
    error = host.answer(2, "fail", how="missing")["error"]
    assert error["kind"] == "internal"
    assert error["message"].endswith("KeyError: 'missing'") and "return {}[how]" in error["message"]
    assert "tickfleet" not in error["message"], "only the user's own lines"
    assert "SystemExit" in host.answer(3, "fail", how="exit")["error"]["message"]
    assert host.answer(4, "add", a="many")["error"]["kind"] == "invalid_arguments"
    assert host.answer(5, "nothing")["error"]["kind"] == "internal"
    assert "output" in host.answer(6, "add", a=1)


@pytest.mark.parametrize(
    ("what", "logged"),
    [
        ("large", "cannot be encoded: it has 10000002 bytes of JSON, which makes a frame of 100000"),
        ("object", "cannot be written as JSON: pydantic_core._pydantic_core.PydanticSerializationError"),
        ("surrogate", "surrogates not allowed"),
        ("circle", "Circular reference"),
        ("odd", "KeyError: 'odd'"),
        ("nan", "ValueError: the result has nan at /a, and JSON has no such number"),
    ],
)
def test_a_withheld_result_is_reported_as_completed_work(host: Host, what: str, logged: str):
    for identity, tool in enumerate(("look", "pay", "put")):
        host.call(identity, tool, what=what)
        line, answer = host.hear(), host.hear()
        assert (line["type"], line["call"], line["level"]) == ("log", "t1/0", "error")
        assert line["message"].startswith(f"the result of {tool} cannot be ") and logged in line["message"], line
        assert what != "large" or line["message"].endswith("at most 4194304 bytes (4 MiB) are allowed")
        if tool == "look":
            error = answer["error"]
            assert error["kind"] == "permanent" and error["message"].startswith("The tool ran, but its result ")
            assert ("Ask for less at a time." in error["message"]) == (what == "large")
            continue
        done = json.loads(answer["output"])
        assert done["executed"] is True and done["note"].startswith("The call succeeded. ")
        assert done["note"].endswith(" Do not call this tool again to repeat it."), done
    assert "output" in host.answer(9, "add", a=1), "the host goes on"


def test_only_the_latest_progress_is_sent_at_a_limited_rate(host: Host):
    host.call(7, "work", steps=60)
    heard = []
    while (message := host.hear())["type"] == "progress":
        heard.append(message)
    assert message["output"] == '"done"' and message["id"] == 7
    # The tool makes 60 reports in about 1.2 s. The host sends the first immediately, and then one every 0.5 s.
    assert 2 <= len(heard) <= 12, len(heard)
    assert [message["fraction"] for message in heard] == sorted(message["fraction"] for message in heard)
    assert heard[0]["message"].startswith("step 0 ?x") and len(heard[0]["message"]) == 500
    assert heard[-1]["fraction"] > 0.2, "later reports replace earlier ones"
    assert "output" in host.answer(8, "add", a=1), "nothing about the call that has ended comes later"


@pytest.mark.parametrize("why", ["object", "nan", "large", "deep", "pair", "none"])
def test_any_error_or_log_text_makes_a_readable_frame(host: Host, why: str):
    host.call(1, "refuse", why=why)
    assert host.hear()["message"] == "half a pair: ?"
    if why not in ("pair", "none"):
        assert host.hear()["message"].startswith("the failure of refuse is reported without its details: ")
    error = host.hear()["error"]
    assert (error["kind"], error["message"]) == ("permanent", "no ? cover")
    assert error["details"] == ("?" if why == "pair" else None)
    assert "output" in host.answer(2, "add", a=1), "the host goes on"


def test_images_are_content_blocks_and_a_frame_bounds_them(host: Host):
    answer = host.answer(1, "chart", size=0)
    blocks = [{"type": "text", "text": "a chart"}, {"type": "image", "data": "R0lGODlh", "mimeType": "image/gif"}]
    assert (json.loads(answer["output"]), answer["content_blocks"]) == (blocks, True)
    host.call(2, "chart", size=4 << 20)
    assert host.hear()["type"] == "log"
    withheld = host.hear()
    assert "needs more than" in withheld["error"]["message"] and "content_blocks" not in withheld


def test_a_generator_that_fails_is_not_reported_as_completed(host: Host):
    assert json.loads(host.answer(1, "pay_each", count=2)["output"]) == [0, 1]
    error = host.answer(2, "pay_each", count=3)["error"]
    assert error["kind"] == "internal" and 'raise KeyError("no cover")' in error["message"]


def test_fields_that_the_declared_type_omits_are_not_shown_from_a_generator(host: Host):
    assert json.loads(host.answer(1, "people")["output"]) == [{"name": "ann"}]


def test_a_failed_import_shows_only_lines_of_the_users_code(tmp_path: Path):
    (tmp_path / "broken.py").write_text("import json\n\njson.loads('{')\n")
    host = Host(tmp_path, "broken")
    failed = host.hear()
    assert failed["type"] == "failed"
    assert 'broken.py", line 3' in failed["message"] and "JSONDecodeError" in failed["message"]
    assert "json/decoder.py" not in failed["message"] and "importlib" not in failed["message"]
    assert host.process.wait(20) == 1
    host.process.communicate()


def test_an_oversized_frame_ends_the_host(host: Host):
    host.ours.sendall(struct.pack(">I", 5_000_000))
    assert host.process.wait(20) != 0


@pytest.mark.parametrize("tool", ["wait", "wait_in_a_thread", "sleep"])
def test_the_host_ends_with_its_worker_even_while_a_tool_runs(host: Host, tool: str):
    host.call(1, tool)
    assert "output" in host.answer(2, "add", a=1)
    host.ours.close()
    host.process.wait(20)
