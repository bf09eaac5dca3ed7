"""Tests of what the agent `support` is allowed to do."""

# ANCHOR: tests
import pytest
from tickfleet.client import ReplyTimeout

REFUND = {"name": "refund_order", "arguments": {"order": "A-1003", "amount": 15}}


def test_support_refunds_an_order_once(fleet):
    first = fleet.run("support", calls=[REFUND])
    second = fleet.run("support", calls=[REFUND])
    assert first.ok
    assert second.results[0].attempts == 0
    assert second.output == first.output


def test_reports_cannot_refund(fleet):
    reply = fleet.run("reports", calls=[REFUND])
    assert reply.results[0].outcome == "denied"


def test_large_refund_waits_for_approval(fleet):
    call = {"name": "refund_order", "arguments": {"order": "A-1002", "amount": 890}}
    turn = fleet.submit("support", calls=[call], pending_approval=True)
    with pytest.raises(ReplyTimeout):
        turn.reply(timeout=3)
    assert turn.pending[0].approval["tool"] == "refund_order"
    turn.cancel()
# ANCHOR_END: tests
