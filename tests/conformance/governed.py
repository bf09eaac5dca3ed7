"""Checks governed functions in this process. Usage: `governed.py`, against `GATEWAY_URL` with `GATEWAY_KEY`, or against
`REDIS_URL`, with a running fleet that has the configuration in `governed/conf`. Payments are counted in the ledger of a
bank, which is a file.

`governed.py pay ORDER TURN LEDGER HOW` is the command of a second process. HOW is `ok`, or `dies` to end inside the
function.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from tickfleet import AsyncFleet, Fleet, ToolError
from tickfleet.client import CallRefused, Conflict, InvalidMessage, OutcomeUnknown

URL = os.environ.get("GATEWAY_URL")
OPTIONS: Any = {"api_key": os.environ["GATEWAY_KEY"]} if URL else {"tenant": "bank"}


class Bank:
    """A ledger outside the fleet."""

    def __init__(self, ledger: str | None = None) -> None:
        self.ledger = Path(ledger or Path(tempfile.mkdtemp()) / "ledger")

    def pay(self, order: str, amount: float) -> dict[str, Any]:
        with self.ledger.open("a") as ledger:
            ledger.write(f"{order}\n")
        return {"order": order, "amount": amount}

    def paid(self, order: str) -> int:
        return self.ledger.read_text().split().count(order) if self.ledger.exists() else 0


def order() -> str:
    return f"A-{uuid.uuid4().hex[:12]}"


def other(bank: Bank, order: str, turn: str, how: str) -> subprocess.Popen[str]:
    args = [sys.executable, "-B", __file__, "pay", order, turn, str(bank.ledger), how]
    return subprocess.Popen(args, stdout=subprocess.PIPE, text=True)


def raises(kind: type[BaseException], run: Any) -> Any:
    try:
        value = run()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {value!r}")


def ok(what: str) -> None:
    print(f"{what}: ok", flush=True)


def blocking(fleet: Fleet) -> None:
    bank = Bank()

    @fleet.governed(agent="kelly")
    def refund(order: str, amount: float = 5.0) -> dict[str, Any]:
        """Refunds."""
        return bank.pay(order, amount)

    one = order()
    assert refund.__name__ == "refund" and refund(one) == {"order": one, "amount": 5.0}
    assert refund(order=one, amount=7) == {"order": one, "amount": 5.0} and bank.paid(one) == 1
    ok("an equal call")

    denied = order()

    @fleet.governed(agent="fran", tool="refund")
    def not_allowed(order: str, amount: float) -> dict[str, Any]:
        return bank.pay(order, amount)

    error = raises(CallRefused, lambda: not_allowed(denied, 5.0))
    assert (error.code, error.result.attempts) == ("denied", 0), error
    assert raises(CallRefused, lambda: refund(denied, 500)).outcome == "denied"
    assert raises(CallRefused, lambda: refund(denied, "much")).outcome == "invalid_arguments"
    assert bank.paid(denied) == 0

    @fleet.governed(agent="frugal", tool="refund")
    def rarely(order: str, amount: float) -> dict[str, Any]:
        return bank.pay(order, amount)

    rarely(order(), 1)
    assert raises(CallRefused, lambda: rarely(denied, 1)).outcome == "daily_cap_reached" and bank.paid(denied) == 0
    ok("a refused call")

    class NoCover(ToolError):
        pass

    @fleet.governed(agent="kelly", tool="refund")
    def fails(order: str, amount: float) -> dict[str, Any]:
        if amount == 1:
            raise NoCover("There is no cover.")
        bank.pay(order, amount)
        raise OSError("The line was cut.")

    failed = order()
    raises(NoCover, lambda: fails(failed, 1))
    raises(OSError, lambda: fails(failed, 2))
    assert "OSError" in str(raises(OutcomeUnknown, lambda: refund(failed, 3))) and bank.paid(failed) == 1
    ok("a function that fails")

    @fleet.governed(agent="kelly", tool="refund")
    def slow(order: str, amount: float) -> dict[str, Any]:
        # The pause lasts three leases, so only heartbeats can keep the claim.
        time.sleep(3.0)
        return bank.pay(order, amount)

    assert slow(order(), 5.0)["amount"] == 5.0
    ok("heartbeats")
    raises(InvalidMessage, lambda: fleet.governed(agent="kelly", tool="refund")(lambda *args: args))

    @fleet.governed(agent="kelly", tool="refund")
    async def coroutine(order: str, amount: float) -> dict[str, Any]:
        await asyncio.sleep(0)
        return bank.pay(order, amount)

    assert asyncio.run(coroutine(order(), 5.0))["amount"] == 5.0
    ok("a coroutine function")

    threads = [threading.Thread(target=refund, args=(order(), float(n))) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    ok("threads")


def processes(fleet: Fleet) -> None:
    bank = Bank()

    @fleet.governed(agent="kelly", tool="refund")
    def refund(order: str, amount: float) -> dict[str, Any]:
        return bank.pay(order, amount)

    one, turn = order(), f"turn-{uuid.uuid4().hex}"
    both = [other(bank, one, turn, "ok") for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert said[0] == said[1] and json.loads(said[0]) == {"order": one, "amount": 5.0}, said
    assert bank.paid(one) == 1
    assert refund(one, 5.0, turn_id=turn) == {"order": one, "amount": 5.0} and bank.paid(one) == 1
    raises(Conflict, lambda: refund(one, 6.0, turn_id=turn))
    ok("two processes")

    two, turn = order(), f"turn-{uuid.uuid4().hex}"
    died = other(bank, two, turn, "dies")
    died.communicate(timeout=60)
    assert died.returncode == -signal.SIGKILL and bank.paid(two) == 1
    error = raises(OutcomeUnknown, lambda: refund(two, 5.0, turn_id=turn))
    assert error.result.attempts == 1, error.result
    raises(OutcomeUnknown, lambda: refund(two, 5.0))
    both = [other(bank, two, turn, "ok") for _ in range(2)]
    assert [process.communicate(timeout=60)[0] for process in both] == ["outcome_unknown\n"] * 2
    assert bank.paid(two) == 1
    ok("a process that dies")

    asked: list[int] = []
    turn = f"turn-{uuid.uuid4().hex}"

    @fleet.governed(agent="kelly")
    def look_up(order: str) -> str:
        asked.append(1)
        return order

    dies = other(bank, two, turn, "read")
    dies.communicate(timeout=60)
    assert dies.returncode == -signal.SIGKILL and look_up(two, turn_id=turn) == two and asked == [1]
    ok("a read whose process dies")


async def cooperative() -> None:
    bank = Bank()
    async with AsyncFleet(URL, **OPTIONS) as fleet:

        @fleet.governed(agent="kelly")
        async def refund(order: str, amount: float) -> dict[str, Any]:
            await asyncio.sleep(0.01)
            return bank.pay(order, amount)

        orders = [order() for _ in range(20)]
        paid = await asyncio.gather(*(refund(one, 1.0) for one in orders))
        assert [one["order"] for one in paid] == orders and all(bank.paid(one) == 1 for one in orders)
        session = refund.with_fields(user_context={"user": "u-1"})
        one = order()
        assert (await session(one, 2.0, turn_id=f"turn-{one}"))["order"] == one

        @fleet.governed(agent="kelly", tool="refund")
        def in_a_thread(order: str, amount: float) -> int:
            bank.pay(order, amount)
            return threading.get_ident()

        assert await in_a_thread(order(), 1.0) != threading.get_ident()

        @fleet.governed(agent="kelly", tool="refund")
        async def forever(order: str, amount: float) -> None:
            bank.pay(order, amount)
            await asyncio.Event().wait()

        one = order()
        running = asyncio.create_task(forever(one, 1.0))
        while not bank.paid(one):
            # The ledger is a file, so this polls.
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        try:
            raise AssertionError(await refund(one, 1.0))
        except OutcomeUnknown as error:
            assert error.result.repeats
    ok("asyncio")


def another() -> None:
    _, _, order, turn, ledger, how = sys.argv
    bank = Bank(ledger)
    with Fleet(URL, **OPTIONS) as fleet:

        @fleet.governed(agent="kelly")
        def refund(order: str, amount: float) -> dict[str, Any]:
            paid = bank.pay(order, amount)
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            return paid

        @fleet.governed(agent="kelly")
        def look_up(order: str) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if how == "read":
            look_up(order, turn_id=turn)
        try:
            print(json.dumps(refund(order, 5.0, turn_id=turn)))
        except OutcomeUnknown as error:
            print(error.code)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pay"]:
        another()
    else:
        with Fleet(URL, **OPTIONS) as fleet:
            blocking(fleet)
            processes(fleet)
        asyncio.run(cooperative())
