"""Frames: a length of four bytes, big-endian, followed by JSON of that length. The worker and the host reject a
frame above the bound."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

#: In bytes. The worker has the same maximum.
FRAME_BYTES_MAX = 4 * 1024 * 1024
BOUND = f"{FRAME_BYTES_MAX} bytes (4 MiB)"

_LENGTH = struct.Struct(">I")


class FrameTooLarge(ValueError):
    """A frame exceeds the common bound."""


def encode(message: dict[str, Any]) -> bytes:
    """Encodes a frame. Replaces lone surrogates with question marks, because the worker could not decode them.

    Raises:
        FrameTooLarge: The frame would exceed the bound.
        TypeError, ValueError, RecursionError: The message cannot be encoded as JSON.
    """
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    body = text.encode(errors="replace")
    if len(body) > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a frame of {len(body)} bytes; at most {BOUND} are allowed")
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Reads the next message. Returns ``None`` if the other side has closed the socket.

    Raises:
        FrameTooLarge: The frame's length exceeds the bound, so the rest of the stream cannot be read.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > FRAME_BYTES_MAX:
            raise FrameTooLarge(f"a frame of {length} bytes; at most {BOUND} are allowed")
        message: dict[str, Any] = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return message
