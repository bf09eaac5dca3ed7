"""Tests of results that JSON cannot represent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, field_serializer

from tickfleet import _json

NAN, INFINITE = float("nan"), float("inf")


class Price(BaseModel):
    amount: float
    note: str | None = None


@dataclass
class Size:
    width: float


class Shown(BaseModel):
    amount: float

    @field_serializer("amount")
    def write(self, amount: float) -> str:
        return "unknown"


def each(*items: Any) -> Iterator[Any]:
    yield from items


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (float, NAN, "nan at its top"),
        (Any, -INFINITE, "-inf at its top"),
        (Any, {"a": [1.0, {"b": NAN}]}, "nan at /a/1/b"),
        (Price, Price(amount=INFINITE), "inf at /amount"),
        (Any, Price(amount=NAN), "nan at /amount"),
        (list[Size], [Size(1.0), Size(NAN)], "nan at /1/width"),
        (tuple[float, ...], (1.0, NAN), "nan at /1"),
        (set[float], {NAN}, "nan at /"),
        (Iterable[float], each(1.0, NAN), "nan at /1"),
        (Decimal, Decimal("NaN"), "NaN at its top"),
        (Any, {"a": Decimal("-Infinity")}, "-Infinity at /a"),
    ],
)
def test_a_non_finite_number_is_an_error(kind: Any, value: Any, found: str):
    with pytest.raises(ValueError, match=f"the result has {found}, and JSON has no such number"):
        _json.dump(TypeAdapter(kind), value)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Any, {"a": None, "b": [None, 1.5]}, '{"a":null,"b":[null,1.5]}'),
        (Price, Price(amount=1), '{"amount":1.0,"note":null}'),
        (Any, ["NaN", "null", "Infinity"], '["NaN","null","Infinity"]'),
        (set[str], {"null"}, '["null"]'),
        (Iterable[Any], each(None, "a"), '[null,"a"]'),
        (Shown, Shown(amount=NAN), '{"amount":"unknown"}'),
        (Decimal, Decimal("1.10"), '"1.10"'),
    ],
)
def test_other_results_are_unchanged(kind: Any, value: Any, text: str):
    assert _json.dump(TypeAdapter(kind), value) == text
