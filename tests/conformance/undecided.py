"""The reply of an earlier turn with the same ID is not returned: `undecided.py`, against a `REDIS_URL` without a fleet.

The record of a finished turn exists. This process submits a second turn under the same ID. For a while, the second turn
is undecided. Then it is rejected.
"""

import asyncio
import json
import os
from typing import Any

from tickfleet.client import AsyncFleet, Conflict, ReplyTimeout
from tickfleet.client._redis import connect

PREFIX = "{tickfleet:0}:"


def reply(status: str, **more: Any) -> str:
    head = {"turn_id": "used", "tenant": "acme", "agent": "kelly", "status": status, "dialect": "raw", "results": []}
    return json.dumps(head | more)


async def main() -> None:
    redis = connect(os.environ["REDIS_URL"])
    await redis.set(f"{PREFIX}done:acme:used", "anything\n" + reply("done"))
    async with AsyncFleet(tenant="acme", inbox="box") as fleet:
        turn = await fleet.submit("kelly", calls=[{"name": "echo"}], turn_id="used")
        try:
            raise SystemExit(f"the reply of another turn: {await turn.reply(1.0)}")
        except ReplyTimeout:
            pass
        [(entry, fields)] = await redis.xrange(f"{PREFIX}turns")
        assert json.loads(fields["turn"])["turn_id"] == "used"
        async with redis.pipeline() as step:
            step.xadd(f"{PREFIX}replies:acme:box", {"reply": reply("conflict", error={"code": "conflict", "message": "used"}), "seq": 1})
            step.xdel(f"{PREFIX}turns", entry)
            await step.execute()
        try:
            raise SystemExit(f"the reply of another turn: {await turn.reply(10.0)}")
        except Conflict:
            pass
        # Nothing writes a reply here, so the client must read the reply from the record.
        turn = await fleet.submit("kelly", calls=[{"name": "echo"}], turn_id="used")
        [(entry, _)] = await redis.xrange(f"{PREFIX}turns")
        await redis.xdel(f"{PREFIX}turns", entry)
        assert (await turn.reply(10.0)).status == "done"
    await redis.aclose()
    print("ok")


asyncio.run(main())
