# ANCHOR: asyncio
import asyncio

from tickfleet import AsyncFleet


async def main() -> None:
    async with AsyncFleet(tenant="acme") as fleet:
        orders = ("A-1001", "A-1002")
        turns = [fleet.run("support", calls=[{"name": "quote_refund", "arguments": {"order": order}}]) for order in orders]
        for reply in await asyncio.gather(*turns):
            print(reply.output)


asyncio.run(main())
# ANCHOR_END: asyncio
