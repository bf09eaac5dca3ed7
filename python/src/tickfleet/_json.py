"""Writes results as JSON text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter

#: pydantic writes null for a float that is not finite, and NaN or Infinity as a text for a decimal.
_TRACES = ("null", "NaN", "Infinity")


def dump(adapter: TypeAdapter[Any], value: Any) -> str:
    """Returns the JSON text of a value.

    Raises:
        ValueError: The value has NaN or Infinity.
        PydanticSerializationError: Another part of the value cannot be written as JSON.
    """
    # A generator can be read only once, so its items are kept. They are passed as an iterator again, because a list's
    # serializer would include fields that the declared type omits.
    items = list(value) if isinstance(value, Iterator) else None

    def again() -> Any:
        return value if items is None else iter(items)

    text = adapter.dump_json(again(), by_alias=True, warnings=False).decode()
    if any(trace in text for trace in _TRACES):
        lost = _lost(adapter.dump_python(again(), by_alias=True, warnings=False), json.loads(text), "")
        if lost is not None:
            raise ValueError(f"the result has {lost}, and JSON has no such number")
    return text


def _lost(value: Any, written: Any, path: str) -> str | None:
    """Returns the first number that is not finite, with its location, or None. ``written`` is the JSON value at
    this location. The type's own serializer may have replaced the number there."""
    if isinstance(value, (float, Decimal)):
        is_finite = math.isfinite(value) if isinstance(value, float) else value.is_finite()
        # If the JSON has a text instead of a float, the type's own serializer wrote it on purpose.
        is_chosen = isinstance(value, float) and isinstance(written, str)
        return None if is_finite or is_chosen else f"{value} at {path or 'its top'}"
    if isinstance(value, Mapping) and isinstance(written, dict) and len(value) == len(written):
        pairs: Any = zip(value.values(), written.values(), written)
    elif isinstance(value, (set, frozenset)):
        # The items of a copied set can have another order than the JSON, so they are checked without the JSON.
        pairs = ((item, None, "") for item in value if isinstance(item, (float, Decimal)))
    elif isinstance(written, list) and not isinstance(value, (str, bytes)) and hasattr(value, "__iter__"):
        pairs = ((item, one, at) for at, (item, one) in enumerate(zip(value, written)))
    else:
        return None
    return next((lost for item, one, at in pairs if (lost := _lost(item, one, f"{path}/{at}")) is not None), None)
