"""An agent of LangChain: python3 agents/langchain_agent.py case-9 'Where is order A-1003?'"""

# ANCHOR: agent
import asyncio
import sys

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from tickfleet import AsyncFleet
from tickfleet.adapters.langgraph import fleet_tools


async def main(thread: str, question: str) -> None:
    async with AsyncFleet(tenant="acme") as fleet:
        tools = await fleet_tools(fleet, "support")
        agent = create_agent("openai:gpt-5", tools, checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": thread}}
        state = await agent.ainvoke({"messages": [("user", question)]}, config, durability="sync")
        print(state["messages"][-1].content)


asyncio.run(main(sys.argv[1], sys.argv[2]))
# ANCHOR_END: agent
