"""Tests of the client's decisions about governed functions, without a fleet. The tests with a fleet are in
tests/conformance."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tickfleet import AsyncFleet, ToolError
from tickfleet.client import CallRefused, InvalidMessage, OutcomeUnknown, Reply
from tickfleet.client._reply import read_reply
from tickfleet.client._transport import Claim


def ended(outcome: str, **more: Any) -> Reply:
    """Returns the reply to a turn with one call."""
    result = {"call": "t/0", "tool": "pay", "success": outcome == "ok", "outcome": outcome} | more
    return read_reply(json.dumps({"turn_id": "t", "tenant": "acme", "status": "done", "dialect": "raw", "results": [result]}))


class Stub:
    """A fleet that offers the call once per claim, and then replies."""

    inbox = None

    def __init__(self, reply: Reply, claims: int = 1, change: dict[str, Any] | None = None) -> None:
        self.last, self.claims, self.change = reply, claims, change
        self.message: dict[str, Any] = {}
        self.reports: list[dict[str, Any]] = []

    def tenant_of(self, tenant: str | None) -> str | None:
        return tenant

    async def submit(self, kind: str, tenant: str | None, message: dict[str, Any], is_given: bool, waits: bool) -> Any:
        self.message = message
        return self

    async def claim(self, tenant: str | None, id: str, claimant: str, wait: int) -> Claim | None:
        if self.claims == 0:
            return None
        self.claims -= 1
        arguments = json.loads(json.dumps(self.message["calls"][0]["arguments"])) | (self.change or {})
        return Claim("1-0", arguments, 30)

    async def reply(self, timeout: float | None) -> Reply:
        return self.last

    async def report(self, tenant: str | None, id: str, report: dict[str, Any]) -> None:
        self.reports.append(report)


class SlowReply(Stub):
    """A fleet that sends the reply some time after the report."""

    async def reply(self, timeout: float | None) -> Reply | None:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.last if timeout is not None and timeout > 0.01 else None


def called(stub: Stub, function: Callable[..., Any], *args: Any, timeout: float = 300.0, **kwargs: Any) -> Any:
    async def run() -> Any:
        fleet = AsyncFleet("redis://127.0.0.1:1", tenant="acme")
        fleet._transport = stub  # type: ignore[assignment]
        return await fleet.governed(agent="kelly", tool="pay", timeout=timeout)(function)(*args, **kwargs)

    return asyncio.run(run())


def ends(stub: Stub) -> list[str]:
    return [report["op"] for report in stub.reports if report["op"] != "heartbeat"]


def test_the_fleet_sees_defaults_and_the_function_gets_the_approved_arguments() -> None:
    reported: list[Any] = []

    def pay(order: str, amount: float = 5.0, memo: str | None = None) -> str:
        reported.append((order, amount, memo))
        return "paid"

    stub = Stub(ended("ok", output="recorded"), change={"amount": 3})
    assert called(stub, pay, "A-1", turn_id="case-7") == "paid"
    call = stub.message["calls"][0]
    assert call == {"name": "pay", "arguments": {"order": "A-1", "amount": 5.0}}
    assert (stub.message["turn_id"], stub.message["local_calls"]) == ("case-7", True)
    assert reported == [("A-1", 3, None)]


def test_the_function_receives_its_own_objects_unless_an_approver_changed_them() -> None:
    key = ("a", "b")
    stub = Stub(ended("ok", output=None))
    assert called(stub, lambda order: order is key, order=key)


def test_a_call_that_ran_elsewhere_returns_the_recorded_result() -> None:
    assert called(Stub(ended("ok", output={"n": 1}), claims=0), lambda order: "here", order="A-1") == {"n": 1}
    for outcome, attempts, kind in [("denied", 0, CallRefused), ("outcome_unknown", 1, OutcomeUnknown)]:
        with pytest.raises(kind) as raised:
            called(Stub(ended(outcome, attempts=attempts), claims=0), lambda order: "here", order="A-1")
        assert raised.value.code == outcome


def test_a_repeated_offer_runs_only_if_the_effect_allows_it() -> None:
    ran: list[str] = []

    def pay(order: str) -> str:
        ran.append(order)
        return order

    # The fleet has lost the first report, and offers the call again.
    stub = Stub(ended("ok", output="A-1"), claims=2)
    assert called(stub, pay, order="A-1") == "A-1" and ran == ["A-1"]
    assert ends(stub) == ["finish", "finish"]

    def busy(order: str) -> str:
        ran.append(order)
        if len(ran) < 3:
            raise ToolError.transient("Busy.", not_executed=True)
        return order

    stub = Stub(ended("ok", output="A-1"), claims=2)
    assert called(stub, busy, order="A-1") == "A-1" and len(ran) == 3
    assert stub.reports[0] | {"lease": ""} == {
        "op": "fail",
        "error": {"code": "transient", "message": "Busy."},
        "retryable": True,
        "not_executed": True,
        "lease": "",
    }


def test_a_function_that_exceeds_its_timeout_still_returns_its_value() -> None:
    assert called(SlowReply(ended("ok", output="paid")), lambda order: "paid", order="A-1", timeout=0.0) == "paid"


def test_an_exception_reaches_the_caller_unless_the_fleet_finds_the_effect() -> None:
    def cut(order: str) -> str:
        raise OSError("The line was cut.")

    stub = Stub(ended("outcome_unknown", attempts=1))
    with pytest.raises(OSError):
        called(stub, cut, order="A-1")
    assert stub.reports[0]["unknown"] and stub.reports[0]["error"]["code"] == "OSError"
    assert called(Stub(ended("ok", output="found")), cut, order="A-1") == "found"


def test_an_output_that_is_not_json_is_still_reported() -> None:
    value = object()
    stub = Stub(ended("ok", output="x"))
    assert called(stub, lambda order: value, order="A-1") is value
    assert "not recorded" in stub.reports[0]["output"]


def test_heartbeats_stop_with_the_function() -> None:
    async def slow(order: str) -> str:
        # The run lasts for several leases of 30 ms.
        await asyncio.sleep(0.2)
        return order

    stub = Stub(ended("ok", output="A-1"))
    called(stub, slow, order="A-1")
    assert [report["op"] for report in stub.reports].count("heartbeat") >= 3
    assert stub.reports[-1]["op"] == "finish"


@pytest.mark.parametrize("function", [lambda *args: 1, lambda **more: 1, lambda turn_id: 1])
def test_parameter_names_are_unique(function: Any) -> None:
    with pytest.raises(InvalidMessage):
        called(Stub(ended("ok")), function)
