"""A fleet for tests, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tickfleet.client import Fleet

_FOREIGN = ("REDIS_URL", "FLEET_URL", "FLEET_KEY", "TICKFLEET_CONFIG")


@dataclass(frozen=True)
class TestFleet:
    """A running fleet, whose data ends with it."""

    # Without this attribute, pytest would treat the class as a test.
    __test__ = False

    client: Fleet
    """Client for all agents of the tenant."""
    console: str
    """Link to the console, with its key."""
    _program: str
    _environment: Mapping[str, str]

    def audit(self, tool: str | None = None) -> list[dict[str, Any]]:
        """Returns the entries of the audit log, the oldest first, of one tool or of all."""
        chosen = ["--tool", tool] if tool else []
        found = json.loads(self.command("audit", "search", "--limit", "1000", "--json", *chosen))
        return [entry["audit"] for entry in reversed(found["entries"])]

    def effects(self, tool: str) -> int:
        """Returns how often the tool has run with success. A call that got the result of an equal call did not run."""
        calls = [entry["meta"] for entry in self.audit(tool) if entry["action"] == "TOOL_CALL"]
        return sum(call["outcome"] == "ok" and "repeats" not in call for call in calls)

    def approve(self, by: str, *, timeout: float = 10.0) -> None:
        """Approves the calls that wait, as the approver `by`. Waits for the first one.

        Raises:
            TimeoutError: No call waits for approval after ``timeout`` seconds.
        """
        self._decide(timeout, "approve", "--by", by)

    def deny(self, by: str, *, reason: str = "denied", timeout: float = 10.0) -> None:
        """Denies the calls that wait. The model reads the reason. The same as :meth:`approve` otherwise."""
        self._decide(timeout, "deny", "--by", by, "--reason", reason)

    def _decide(self, timeout: float, verb: str, *options: str) -> None:
        ends = time.monotonic() + timeout
        while not (waiting := json.loads(self.command("approvals", "list", "--json"))["items"]):
            if time.monotonic() > ends:
                raise TimeoutError(f"no call waits for approval after {timeout:g} s")
            time.sleep(0.05)
        for approval in waiting:
            self.command("approvals", verb, f"{approval['tenant']}:{approval['id']}", *options)

    def command(self, *arguments: str) -> str:
        """Runs a command of the program on this fleet, and returns its output.

        Raises:
            subprocess.CalledProcessError: The command failed; ``stderr`` has its message.
        """
        done = subprocess.run(
            [self._program, *arguments], env=self._environment, capture_output=True, text=True, check=True
        )
        return done.stdout


@contextmanager
def fleet(config: str | os.PathLike[str], *, tenant: str | None = None, **environment: str) -> Iterator[TestFleet]:
    """Starts a fleet without Redis for the tests in a ``with`` block.

    Args:
        config: Configuration folder.
        tenant: Tenant of the client. Default: the first of the configuration.
        **environment: Variables of the fleet's process, such as the address of a stand-in for a service.

    Raises:
        RuntimeError: The program is missing, or the fleet did not start; its message is on stderr.
    """
    from tickfleet.client import Fleet

    program = _program()
    inherited = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    variables = inherited | {"TICKFLEET_HTTP_ADDRESS": "127.0.0.1:0"} | environment
    with tempfile.TemporaryDirectory(prefix="tickfleet-") as folder:
        command = [program, "dev", "--config", os.path.abspath(config), "--dir", folder, "--console", "0"]
        with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
            try:
                console = _started(process)
                here = json.loads(Path(folder, "dev.json").read_text())
                variables |= {"REDIS_URL": here["redis_url"], "TICKFLEET_CONFIG": os.path.abspath(config)}
                with Fleet(here["fleet_url"], api_key=here["fleet_key"], tenant=tenant) as client:
                    yield TestFleet(client, console, program, variables)
            finally:
                process.terminate()


def _program() -> str:
    """Returns the program next to this Python. If there is none, returns the program in the PATH."""
    beside = Path(sys.executable).parent / "tickfleet"
    found = str(beside) if beside.is_file() else shutil.which("tickfleet")
    if found is None:
        raise RuntimeError("the program tickfleet is missing: install a wheel that has it, or put it into the PATH")
    return found


def _started(process: subprocess.Popen[str]) -> str:
    console = ""
    for line in process.stdout or ():
        if line.startswith("Console: "):
            console = line.removeprefix("Console: ").strip()
        if line.startswith("Ctrl-C"):
            return console
    raise RuntimeError("tickfleet dev did not start: see its message on stderr")


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    """Returns a tool call, for ``calls`` of a turn, or for the response of a :class:`ScriptedModel`."""
    return {"name": name, "arguments": arguments}


class ScriptedModel:
    """A model for tests, which plays OpenAI's client: ``model.chat.completions.create(messages=…, tools=…)``.

    Args:
        responses: The responses, in order: a text, or the calls of a response, made by :func:`tool_call`.
    """

    def __init__(self, responses: Sequence[str | Sequence[Mapping[str, Any]]]) -> None:
        self._responses = list(responses)
        self.requests: list[dict[str, Any]] = []
        """The arguments of each request so far."""
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, **request: Any) -> Any:
        number = len(self.requests)
        if number == len(self._responses):
            raise AssertionError(f"the model was asked once more than its {number} responses")
        self.requests.append(request)
        response = self._responses[number]
        message = _Object(role="assistant", content=None, tool_calls=None)
        if isinstance(response, str):
            message.content = response
        else:
            message.tool_calls = [_tool_call(f"call_{number}_{at}", made) for at, made in enumerate(response)]
        return SimpleNamespace(id=f"response-{number}", choices=[SimpleNamespace(message=message)])


class _Object(SimpleNamespace):
    """Imitates an object of OpenAI's package."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {
            name: value.model_dump() if isinstance(value, _Object) else value
            for name, value in vars(self).items()
            if value is not None
        }


def _tool_call(id: str, made: Mapping[str, Any]) -> _Object:
    function = _Object(name=made["name"], arguments=json.dumps(made["arguments"]))
    return _Object(id=id, type="function", function=function)
