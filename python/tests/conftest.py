"""Each test starts without tools."""

from collections.abc import Iterator

import pytest

from tickfleet import _tool


@pytest.fixture(autouse=True)
def no_tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_tool, "_registered", {})
    yield
