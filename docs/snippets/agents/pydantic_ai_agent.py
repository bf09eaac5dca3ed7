"""An agent of Pydantic AI: python3 agents/pydantic_ai_agent.py 'Refund order A-1001.'"""

# ANCHOR: agent
import asyncio
import sys

from pydantic_ai import Agent
from tickfleet import AsyncFleet
from tickfleet.adapters.pydantic_ai import FleetToolset


async def main(question: str) -> None:
    async with AsyncFleet(tenant="acme") as fleet:
        agent = Agent("openai:gpt-5", toolsets=[FleetToolset(fleet, "support")])
        result = await agent.run(question)
        print(result.output)


asyncio.run(main(sys.argv[1]))
# ANCHOR_END: agent
