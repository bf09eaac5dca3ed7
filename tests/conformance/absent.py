"""A tenant that does not exist is rejected at once: `absent.py`, against `REDIS_URL`, and through `GATEWAY_URL` with
`GATEWAY_KEY`, a key for tenant `nowhere`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any

from tickfleet import AsyncFleet, Fleet
from tickfleet.client import FleetError, NoDefinitions, Rejected, _hub

CALLS = [{"name": "echo", "arguments": {"text": "hi"}}]


async def refused(what: str, work: Awaitable[Any]) -> None:
    try:
        found = await work
    except Rejected as error:
        assert error.code == "unknown_tenant" and "nowhere" in str(error), error
        assert error.reply.tenant == "nowhere" and error.reply.id, error.reply
    else:
        raise AssertionError(f"{what}: {found}")


async def each_way(fleet: AsyncFleet) -> None:
    await refused("run", fleet.run("kelly", calls=CALLS, timeout=30))
    await refused("run, with an id", fleet.run("kelly", calls=CALLS, timeout=30, turn_id="order-17"))
    turn = await fleet.submit("kelly", calls=CALLS)
    await refused("submit and reply", turn.reply(30))
    await refused("wait", fleet.wait(turn.id, timeout=30))
    task = await fleet.delegate("noter", "Note this.")
    events = [event async for event in task.events()]
    assert [event.kind for event in events] == ["ended"], events
    assert events[0].reply and events[0].reply.error and events[0].reply.error.code == "unknown_tenant", events
    await refused("delegate and reply", task.reply(30))
    try:
        await fleet.tools("kelly")
    except NoDefinitions:
        pass
    else:
        raise AssertionError("expected no definitions")


async def main() -> None:
    # Without the fallback read of the turn's record, only the rejection itself can end the wait.
    _hub._RECORD_AFTER = 3_600.0
    async with AsyncFleet(tenant="nowhere") as fleet:
        await each_way(fleet)
    with Fleet(tenant="nowhere") as blocking:
        try:
            blocking.run("kelly", calls=CALLS, timeout=30)
        except FleetError as error:
            assert error.code == "unknown_tenant", error
    async with AsyncFleet(tenant="python") as fleet:
        assert (await fleet.run("kelly", calls=CALLS)).ok
    async with AsyncFleet(os.environ["GATEWAY_URL"], api_key=os.environ["GATEWAY_KEY"]) as fleet:
        await each_way(fleet)
    print("absent: ok")


asyncio.run(main())
