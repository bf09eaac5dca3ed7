"""An agent of the OpenAI Agents SDK on Chat Completions: python3 agents/openai_agents_chat.py case-7 'Refund order A-1001.'"""

# ANCHOR: agent
import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI
from tickfleet import AsyncFleet
from tickfleet.adapters.openai_agents import fleet_tools


async def main(case: str, question: str) -> None:
    async with AsyncFleet(tenant="acme") as fleet:
        tools = await fleet_tools(fleet, "support", run_id=lambda context: context.context["case"])
        model = OpenAIChatCompletionsModel(model="gpt-5", openai_client=AsyncOpenAI())
        agent = Agent(name="support", model=model, tools=tools)
        result = await Runner.run(agent, question, context={"case": case})
        print(result.final_output)


asyncio.run(main(sys.argv[1], sys.argv[2]))
# ANCHOR_END: agent
