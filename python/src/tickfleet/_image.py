"""Images in results of tools."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

#: Every model provider accepts these formats.
_SIGNATURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF87a", "image/gif"), (b"GIF89a", "image/gif"))


class Image:
    """An image that a tool returns, alone or in a list with texts. Models whose protocol permits images in results see
    the image; for other models, a text describes it.

    Args:
        data: The image as PNG, JPEG, GIF or WebP.

    Raises:
        ValueError: The data has another format.
    """

    def __init__(self, data: bytes) -> None:
        found = next((kind for start, kind in _SIGNATURES if data.startswith(start)), None)
        if found is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            found = "image/webp"
        if found is None:
            raise ValueError(f"not an image that models can read: it starts with {data[:8]!r}; expected PNG, JPEG, GIF or WebP")
        self.data = data
        self.media_type = found

    @classmethod
    def from_file(cls, path: str | Path) -> Image:
        """Reads an image from a file.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file has another format.
        """
        return cls(Path(path).read_bytes())

    def __repr__(self) -> str:
        return f"Image({self.media_type}, {len(self.data)} bytes)"

    def block(self) -> dict[str, Any]:
        """The image as a content block of MCP."""
        return {"type": "image", "data": base64.b64encode(self.data).decode(), "mimeType": self.media_type}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Permits images in type hints of results. Without a JSON Schema for input, a parameter cannot be an image."""
        return core_schema.is_instance_schema(
            cls,
            serialization=core_schema.plain_serializer_function_ser_schema(Image.block, return_schema=core_schema.any_schema()),
        )


def content_blocks(result: Any) -> list[dict[str, Any]] | None:
    """Returns the content blocks of a result with images, or None for any other result."""
    parts: Sequence[Any] = result if isinstance(result, (list, tuple)) else [result]
    if not any(isinstance(part, Image) for part in parts) or not all(isinstance(part, (str, Image)) for part in parts):
        return None
    return [part.block() if isinstance(part, Image) else {"type": "text", "text": part} for part in parts]
