"""Tests of what the agent `support` is allowed to do."""

# ANCHOR: tests
from tickfleet.testing import ScriptedModel, tool_call

REFUND = tool_call("refund_order", order="A-1003", amount=15)


def test_support_refunds_an_order_once(fleet):
    first = fleet.client.run("support", calls=[REFUND])
    second = fleet.client.run("support", calls=[REFUND])
    assert first.ok
    assert second.output == first.output
    assert fleet.effects("refund_order") == 1


def test_reports_cannot_refund(fleet):
    reply = fleet.client.run("reports", calls=[REFUND])
    assert reply.results[0].outcome == "denied"


def test_large_refund_waits_for_approval(fleet):
    turn = fleet.client.submit("support", calls=[tool_call("refund_order", order="A-1002", amount=890)])
    fleet.approve(by="ann")
    assert turn.reply().ok


def test_the_loop_ends_with_the_models_answer(fleet):
    model = ScriptedModel([[tool_call("look_up_order", order="A-1001")], "It was delivered."])
    messages = [{"role": "user", "content": "Where is A-1001?"}]
    while (message := model.chat.completions.create(messages=messages).choices[0].message).tool_calls:
        messages += fleet.client.run("support", tool_calls=message.tool_calls).messages
    assert message.content == "It was delivered."
    assert "delivered" in messages[-1]["content"]
# ANCHOR_END: tests
