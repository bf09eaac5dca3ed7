"""A tool host: listens on a Unix socket, and starts a separate interpreter for each connection.

It runs in a separate container next to the worker. The worker connects, and communicates directly with the
interpreter of each connection; the tool host itself reads and writes no messages. When a connection ends, the tool
host ends its interpreter, with every process that the interpreter has started.
"""

from __future__ import annotations

import argparse
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tickfleet.host import _frames

#: This variable marks an interpreter and all processes that it starts, even outside its process group.
_MARK = "TICKFLEET_INTERPRETER"
#: After the end of its connection, an interpreter has this time to end. Then it is killed.
_GRACE_S = 1.0
_LOOK_S = 0.1
#: A terminating tool host ends after this many seconds without a connection. It does not end immediately, because a
#: worker that replaces its only interpreter has no connection for a moment.
_LINGER_S = 2.0
#: Maximum scans for processes to kill. A process that forks during one scan is found in the next scan.
_LOOKS_MAX = 10
#: Platforms without this event do not report a closed connection. There, interpreters must end by themselves.
_GONE = getattr(select, "POLLRDHUP", 0)


@dataclass
class _Interpreter:
    """A process and the connection that it serves."""

    process: subprocess.Popen[bytes]
    #: The tool host watches this copy of the connection, and closes it when the process has ended.
    connection: socket.socket
    mark: str
    #: The process is killed at this time. ``None`` while the connection is open.
    ends_at: float | None = None


def run(arguments: argparse.Namespace) -> None:
    """Listens until SIGTERM. Then continues until no connection has been open for a while. A second SIGTERM, or
    SIGINT, ends the tool host immediately."""
    _ToolHost(arguments).run()


class _ToolHost:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._path: str = arguments.listen
        self._max: int = arguments.processes_max
        self._command = _command(arguments)
        self._running: dict[int, _Interpreter] = {}
        self._ends = 0
        self._served_at = time.monotonic()
        self._poll = select.poll()

    def run(self) -> None:
        listening = _listen(self._path)
        ours = os.stat(self._path)
        woken, wakes = socket.socketpair()
        for end in (woken, wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end_by(1))
        signal.signal(signal.SIGINT, lambda *_: self._end_by(2))
        self._poll.register(listening, select.POLLIN)
        self._poll.register(woken, select.POLLIN)
        print(f"a tool host listens at {self._path}", file=sys.stderr, flush=True)
        try:
            while self._ends == 0 or (self._ends == 1 and not self._is_alone()):
                self._step(listening, woken)
        finally:
            _remove(self._path, ours)
            for interpreter in list(self._running.values()):
                _kill(interpreter)

    def _end_by(self, signals: int) -> None:
        self._ends += signals

    def _is_alone(self) -> bool:
        """Returns true if there is no connection, and the last one ended some time ago."""
        return not self._running and time.monotonic() >= self._served_at + _LINGER_S

    def _step(self, listening: socket.socket, woken: socket.socket) -> None:
        for number, _ in self._poll.poll(self._poll_timeout_ms()):
            if number == listening.fileno():
                self._accept(listening)
            elif number == woken.fileno():
                woken.recv(4096)
            elif (interpreter := self._running.get(number)) is not None:
                # The interpreter also detects the closed connection, and is killed if it does not end in time.
                interpreter.ends_at = time.monotonic() + _GRACE_S
                self._poll.unregister(number)
        self._reap()
        for interpreter in self._running.values():
            if interpreter.ends_at is not None and time.monotonic() >= interpreter.ends_at:
                _kill(interpreter)
                interpreter.ends_at = time.monotonic() + _GRACE_S

    def _poll_timeout_ms(self) -> int | None:
        ending = self._ends > 0 or any(interpreter.ends_at is not None for interpreter in self._running.values())
        return int(_LOOK_S * 1000) if ending else None

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # The client has disconnected.
        if len(self._running) >= self._max:
            _refuse(connection, f"it already runs {self._max} interpreters, the maximum that --processes-max allows")
            return
        mark = secrets.token_hex(16)
        try:
            process = subprocess.Popen(
                self._command, stdin=connection.fileno(), env={**os.environ, _MARK: mark}, start_new_session=True
            )
        except OSError as error:
            _refuse(connection, f"an interpreter could not be started ({error})")
            return
        self._running[connection.fileno()] = _Interpreter(process, connection, mark)
        self._poll.register(connection, _GONE)

    def _reap(self) -> None:
        """Reaps ended processes: interpreters, and in a container also orphans."""
        by_process = {interpreter.process.pid: number for number, interpreter in self._running.items()}
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            if (number := by_process.get(process)) is not None:
                self._ended(number, os.waitstatus_to_exitcode(status))

    def _ended(self, number: int, code: int) -> None:
        interpreter = self._running.pop(number)
        self._served_at = time.monotonic()
        interpreter.process.returncode = code
        if interpreter.ends_at is None:
            self._poll.unregister(number)
            print(f"an interpreter has ended with {code}", file=sys.stderr, flush=True)
        _kill(interpreter)
        # If only this copy were closed, a process with another copy would keep the worker waiting.
        try:
            interpreter.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The worker has closed it.
        interpreter.connection.close()


def _command(arguments: argparse.Namespace) -> list[str]:
    paths = [part for path in arguments.path for part in ("--path", path)]
    options = ["--fd", "0", "--concurrency", str(arguments.concurrency), *paths]
    return [sys.executable, "-m", "tickfleet.host", *options, *arguments.modules]


def _listen(path: str) -> socket.socket:
    _remove(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The worker may run as another user of the same group. Users outside the group must not connect.
    before = os.umask(0o117)
    try:
        listening.bind(path)
    finally:
        os.umask(before)
    listening.listen()
    return listening


def _remove(path: str, ours: os.stat_result | None = None) -> None:
    """Removes a socket. With ``ours``, removes it only if it is the same socket: a successor may already listen
    there."""
    if Path(path).is_socket() and (ours is None or os.path.samestat(os.stat(path), ours)):
        os.unlink(path)


def _refuse(connection: socket.socket, why: str) -> None:
    """Reports the reason why a connection gets no interpreter to the worker, and closes the connection."""
    print(f"a connection was refused: {why}", file=sys.stderr, flush=True)
    with connection:
        try:
            connection.sendall(_frames.encode({"type": "refused", "message": why}))
        except OSError:
            pass  # The client has disconnected.


def _kill(interpreter: _Interpreter) -> None:
    """Kills an interpreter and its process group, and on Linux every other process with its mark."""
    if interpreter.process.returncode is None:
        _signal(interpreter.process.pid, group=True)
    variable = f"{_MARK}={interpreter.mark}".encode()
    for _ in range(_LOOKS_MAX):
        found = [process for process in _processes() if variable in _environment(process)]
        if not found:
            return
        for process in found:
            _signal(process, group=False)


def _signal(process: int, *, group: bool) -> None:
    try:
        (os.killpg if group else os.kill)(process, signal.SIGKILL)
    except ProcessLookupError:
        pass  # It has already ended.


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _environment(process: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # It has ended, or belongs to another user.
