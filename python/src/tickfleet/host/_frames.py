"""Frames: a length of four bytes, big-endian, and as many bytes of JSON. Neither side takes a longer one than agreed."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

#: Bytes of a frame's JSON. The worker has the same bound.
FRAME_BYTES_MAX = 4 * 1024 * 1024
#: The same in words.
BOUND = f"{FRAME_BYTES_MAX} bytes (4 MiB)"

_LENGTH = struct.Struct(">I")


class FrameTooLarge(ValueError):
    """A frame is longer than both sides agreed on."""


def encode(message: dict[str, Any]) -> bytes:
    """A frame. Half of a surrogate pair is no text that the worker can read: a question mark stands for it.

    Raises:
        FrameTooLarge: It would be longer than the other side takes.
        TypeError, ValueError, RecursionError: It cannot be written as JSON.
    """
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    body = text.encode(errors="replace")
    if len(body) > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a frame of {len(body)} bytes; at most {BOUND} are allowed")
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message; none where the other side has closed the socket.

    Raises:
        FrameTooLarge: Its length is beyond the bound: what follows cannot be understood.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > FRAME_BYTES_MAX:
            raise FrameTooLarge(f"a frame of {length} bytes; at most {BOUND} are allowed")
        message: dict[str, Any] = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return message
