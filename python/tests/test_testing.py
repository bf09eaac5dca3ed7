"""Tests of calls to tools, as plain functions and as a worker makes them."""

import asyncio
import datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic_core import PydanticSerializationError

from tickfleet import Context, Image, ToolError, testing, tool


def test_a_tool_stays_a_plain_function():
    @tool
    def add(a: int, b: int = 2) -> int:
        """Adds."""
        return a + b

    assert add(1) == 3
    assert testing.call(add, {"a": 1}) == 3


def test_arguments_and_results_are_json():
    @tool
    def later(day: datetime.date, price: Decimal) -> dict[str, object]:
        """Shifts."""
        return {"day": day + datetime.timedelta(days=1), "price": price}

    assert testing.call(later, {"day": "2026-02-28", "price": "1.10"}) == {"day": "2026-03-01", "price": "1.10"}


def test_invalid_arguments_have_a_readable_error():
    @tool
    def area(width: int, height: int) -> int:
        """Multiplies."""
        return width * height

    with pytest.raises(ToolError, match=r"width: Input should be a valid integer.*; height: Field required; deep: Extra"):
        testing.call(area, {"width": "wide", "deep": 3})


def test_a_test_can_set_the_fields_of_the_injected_context():
    @tool
    async def who(context: Context, greeting: str = "hi") -> str:
        """Greets."""
        await asyncio.sleep(0)
        return f"{greeting} {context.agent} of {context.tenant}, {context.remaining > 4}"

    assert testing.call(who, context=testing.context(tenant="demo", timeout=5)) == "hi kelly of demo, True"


def test_a_tool_can_detect_its_cancellation():
    context = testing.context()
    assert not context.cancelled.wait(0)
    context.cancelled.cancel()
    assert context.cancelled.requested and context.cancelled.wait(60)
    with pytest.raises(asyncio.CancelledError):
        context.cancelled.check()


def test_errors_have_only_the_fields_of_their_kind():
    assert ToolError.transient("busy", retry_after=3, not_executed=True).kind == "transient"
    assert ToolError("no").kind == "permanent"
    with pytest.raises(ValueError):
        ToolError("no", retry_after=1)
    with pytest.raises(ValueError):
        ToolError("no", "transient", details={})
    with pytest.raises(ValueError):
        ToolError("no", "maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"retry_after": "2"}, {"retry_after": float("nan")}, {"not_executed": "yes"}])
def test_an_error_with_unreadable_fields_is_rejected_when_it_is_created(fields: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        ToolError.transient("busy", **fields)


def test_progress_is_validated_and_reaches_the_reporter_of_a_test():
    reports: list[tuple[float | None, str]] = []

    @tool(effect="read")
    def index(context: Context) -> None:
        """Indexes."""
        context.progress(0.4, "Reading")
        context.progress(None)

    testing.call(index, context=testing.context(reporter=lambda fraction, message: reports.append((fraction, message))))
    assert reports == [(0.4, "Reading"), (None, "")]
    testing.call(index)
    for wrong in (1.1, -0.1, float("nan"), "40%"):
        with pytest.raises(ValueError, match="fraction is .*; expected a number from 0 to 1, or None"):
            testing.context().progress(wrong)  # type: ignore[arg-type]


def test_a_result_with_images_is_a_list_of_content_blocks():
    @tool(effect="read", name="test_images")
    def draw(kind: str) -> Any:
        """Draws."""
        png = Image(b"\x89PNG\r\n\x1a\n")
        return {"alone": png, "mixed": ("text", png), "nested": {"image": png}, "no image": ["text"]}[kind]

    image = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
    assert testing.call(draw, {"kind": "alone"}) == [image]
    assert testing.call(draw, {"kind": "mixed"}) == [{"type": "text", "text": "text"}, image]
    assert testing.call(draw, {"kind": "no image"}) == ["text"]
    with pytest.raises(PydanticSerializationError):
        testing.call(draw, {"kind": "nested"})


def test_an_image_has_a_format_that_models_can_read():
    formats = {b"\xff\xd8\xff\xe0": "image/jpeg", b"GIF87a": "image/gif", b"RIFF1234WEBPVP8 ": "image/webp"}
    assert {data: Image(data).media_type for data in formats} == formats
    for data in (b"", b"<svg/>", b"RIFF1234WAVE"):
        with pytest.raises(ValueError, match="expected PNG, JPEG, GIF or WebP"):
            Image(data)


def test_a_parameter_cannot_be_an_image():
    with pytest.raises(TypeError, match="has no JSON Schema"):

        @tool(effect="read", name="test_image_parameter")
        def show(image: Image) -> None:
            """Shows."""
