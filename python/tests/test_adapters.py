"""The turn ids that adapters derive. tests/conformance/resumed.py tests them with the real frameworks."""

from __future__ import annotations

import pytest
from tickfleet.adapters import _calls
from tickfleet.client import Fleet, InvalidMessage
from tickfleet.client._message import ID_BYTES_MAX, name


def test_equal_parts_give_one_id_and_others_another() -> None:
    first = _calls.turn_id("langgraph", "kelly", ["thread", "msg"], [("call_1", "pay", '{"amount":10}')])
    assert first == _calls.turn_id("langgraph", "kelly", ["thread", "msg"], [["call_1", "pay", '{"amount":10}']])
    others = [
        _calls.turn_id("pydantic-ai", "kelly", ["thread", "msg"], [("call_1", "pay", '{"amount":10}')]),
        _calls.turn_id("langgraph", "fran", ["thread", "msg"], [("call_1", "pay", '{"amount":10}')]),
        _calls.turn_id("langgraph", "kelly", ["threadmsg", ""], [("call_1", "pay", '{"amount":10}')]),
        _calls.turn_id("langgraph", "kelly", ["thread", "msg"], [("call_2", "pay", '{"amount":10}')]),
        _calls.turn_id("langgraph", "kelly", ["thread", "msg"], [("call_1", "pay", '{"amount":11}')]),
        _calls.turn_id("langgraph", "kelly", ["thread", None], [("call_1", "pay", '{"amount":10}')]),
    ]
    assert len({first, *others}) == 7
    assert name(first, "turn_id", ID_BYTES_MAX) == first


def test_what_no_utf_8_has_is_identified_too() -> None:
    assert _calls.turn_id("langgraph", "caf\ud83d") != _calls.turn_id("langgraph", "caf")


def test_arguments_that_were_stored_in_another_order_are_the_same_text() -> None:
    assert _calls.arguments_text({"to": "bob", "amount": 10}) == _calls.arguments_text({"amount": 10, "to": "bob"})
    assert _calls.arguments_text('{"to": 1, "to": 2}') == '{"to": 1, "to": 2}'


def test_a_node_of_a_graph_needs_a_client_for_asyncio() -> None:
    pytest.importorskip("langchain_core")
    from tickfleet.adapters.langgraph import fleet_node

    with Fleet("redis://127.0.0.1:1", tenant="acme") as fleet, pytest.raises(TypeError, match="needs an AsyncFleet"):
        fleet_node(fleet, "support")  # type: ignore[arg-type]


def test_one_id_for_all_calls_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="turn_id"):
        _calls.checked({"turn_id": "order-17"})
    assert _calls.checked({"priority": "high"}) == {"priority": "high"}


def test_a_run_is_named_by_a_text_or_a_function() -> None:
    assert _calls.run_named_by(None, "context") is None
    assert _calls.run_named_by("order-17", "context") == "order-17"
    assert _calls.run_named_by(lambda context: f"run-{context}", "7") == "run-7"
    for nothing in ("", lambda context: "", lambda context: None):
        with pytest.raises(InvalidMessage, match="run_id"):
            _calls.run_named_by(nothing, "context")  # type: ignore[arg-type]
