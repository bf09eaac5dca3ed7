"""The turn ids that adapters derive. tests/conformance/resumed.py tests them with the real frameworks."""

from __future__ import annotations

from typing import Any

import pytest
from tickfleet.adapters import _calls
from tickfleet.client import Fleet, InvalidMessage, PendingApproval
from tickfleet.client._message import ID_BYTES_MAX, name


def test_different_parts_give_different_ids() -> None:
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


def test_text_that_is_not_utf_8_has_its_own_id() -> None:
    assert _calls.turn_id("langgraph", "caf\ud83d") != _calls.turn_id("langgraph", "caf")


def test_argument_order_does_not_change_the_text() -> None:
    assert _calls.arguments_text({"to": "bob", "amount": 10}) == _calls.arguments_text({"amount": 10, "to": "bob"})
    assert _calls.arguments_text('{"to": 1, "to": 2}') == '{"to": 1, "to": 2}'


def caller(**more: Any) -> _calls.Caller[str]:
    fleet = Fleet("redis://127.0.0.1:1", tenant="acme")
    return _calls.Caller("langgraph", fleet, "support", more)


def test_async_frameworks_need_an_async_client() -> None:
    pytest.importorskip("pydantic_ai")
    from tickfleet.adapters.pydantic_ai import FleetToolset

    with Fleet("redis://127.0.0.1:1", tenant="acme") as fleet, pytest.raises(TypeError, match="needs an AsyncFleet"):
        FleetToolset(fleet, "support")  # type: ignore[arg-type]


def test_fields_set_by_the_adapter_are_rejected() -> None:
    for options, says in (({"turn_id": "order-17"}, "turn_id: omit it"), ({"pending_approval": True}, "not an option")):
        with pytest.raises(InvalidMessage, match=says):
            caller(**options)
    with pytest.raises(InvalidMessage, match="expected a list"):
        caller(allowed_tools="pay")


def test_fields_are_computed_from_the_context_of_each_run() -> None:
    made = caller(priority="high", user_context=lambda run: {"user": run}, session_id=None, timeout=5.0)
    for user in ("ann", "ben"):
        fields = made.fields(user, [], "turn-1")
        assert fields["user_context"] == {"user": user}
        assert (fields["priority"], fields["turn_id"], fields["allowed_tools"]) == ("high", "turn-1", None)
        assert not {"session_id", "timeout"} & set(fields)


def test_allowed_tools_are_sorted() -> None:
    fields = caller(allowed_tools={"pay", "balance"}, builtin_tools=True).fields("ann", [], "turn-1")
    assert fields["allowed_tools"] == ["balance", "check_task", "fetch_result", "list_tools", "pay"]


def test_an_interrupt_describes_the_call_that_waits() -> None:
    calls = [_calls.call_of("look_up", "{}", None), _calls.call_of("pay", '{"amount": 10}', None)]
    approval = PendingApproval("apr-1", "turn-1/1", 1_795_348_800_123)
    assert approval.position == 1
    assert _calls.notice(approval, "turn-1", calls, "acme", None) == {
        "kind": "tickfleet_approval",
        "approval": "acme:apr-1",
        "turn": "turn-1",
        "tool": "pay",
        "arguments": {"amount": 10},
        "deadline": "2026-11-22T12:00:00Z",
    }
    found = _calls.notice(approval, "turn-1", calls, "", "https://fleet.example.com/")
    assert (found["approval"], found["console"]) == ("apr-1", "https://fleet.example.com/console/#/approvals")


def test_a_run_id_is_a_string_or_a_function() -> None:
    assert _calls.run_named_by(None, "context") is None
    assert _calls.run_named_by("order-17", "context") == "order-17"
    assert _calls.run_named_by(lambda context: f"run-{context}", "7") == "run-7"
    for nothing in ("", lambda context: "", lambda context: None):
        with pytest.raises(InvalidMessage, match="run_id"):
            _calls.run_named_by(nothing, "context")  # type: ignore[arg-type]
