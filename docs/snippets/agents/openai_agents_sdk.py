"""An agent of the OpenAI Agents SDK: python3 agents/openai_agents_sdk.py 'Refund order A-1001.'"""

# ANCHOR: agent
import asyncio
import sys

from agents import Agent, Runner
from tickfleet import AsyncFleet
from tickfleet.adapters.openai_agents import fleet_tools


async def main(question: str) -> None:
    async with AsyncFleet(tenant="acme") as fleet:
        agent = Agent(name="support", model="gpt-5", tools=await fleet_tools(fleet, "support"))
        result = await Runner.run(agent, question)
        print(result.final_output)


asyncio.run(main(sys.argv[1]))
# ANCHOR_END: agent
