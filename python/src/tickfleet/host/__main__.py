"""``python -m tickfleet.host (--fd N | --listen PATH [--processes-max N]) [--path FOLDER]… [--concurrency N] MODULE…``"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import signal
import socket
import sys
from typing import NoReturn

from tickfleet.host import _failures, _frames, _listen
from tickfleet.host._serve import Host


def main() -> None:
    """Connects, imports the modules, and serves their tools until the worker ends the connection."""
    arguments = _arguments()
    if arguments.listen is not None:
        _listen.run(arguments)
        return
    connection = _connect(arguments)
    _keep_frames_apart()
    sys.path[:0] = [os.path.abspath(path) for path in arguments.path]
    try:
        for module in arguments.modules:
            _failures.belongs_to_user(module)
            importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - any error of an import is reported.
        refused = {"type": "failed", "message": _failures.stack(error)}
        connection.sendall(_frames.encode(refused))
        _end(1)
    asyncio.run(_serve(connection, arguments.concurrency))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tickfleet.host", description="Serves tools to a Tickfleet worker.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--fd", type=int, help="an inherited descriptor of a connected Unix socket")
    where.add_argument("--listen", metavar="PATH", help="a Unix socket: each connection gets an interpreter of its own")
    parser.add_argument("--path", action="append", default=[], help="a folder to find modules in, before all others")
    parser.add_argument("--concurrency", type=_positive, default=8, help="synchronous calls that run at once")
    parser.add_argument("--processes-max", type=_positive, default=8, help="interpreters at once, with --listen")
    parser.add_argument("modules", nargs="+", metavar="MODULE")
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def _connect(arguments: argparse.Namespace) -> socket.socket:
    # Child processes of tools do not inherit the copy.
    inherited = socket.socket(fileno=arguments.fd)
    connection = inherited.dup()
    inherited.close()
    return connection


def _keep_frames_apart() -> None:
    """Redirects a tool's standard output to standard error and empties its input, so that neither uses the
    socket."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing != 0:
        os.close(nothing)
    os.dup2(2, 1)


async def _serve(connection: socket.socket, concurrency: int) -> None:
    limit = _frames.FRAME_BYTES_MAX + 4
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=limit)
    await Host(reader, writer, concurrency).serve()
    try:
        await asyncio.wait_for(writer.drain(), 1)
    except (OSError, asyncio.TimeoutError):
        pass  # The worker has gone.
    # Leaving the loop would wait for threads with tools that still run.
    _end(0)


def _end(code: int) -> NoReturn:
    """Ends the process and all processes that its tools have started. Does not wait for running threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    os._exit(code)


if __name__ == "__main__":
    main()
