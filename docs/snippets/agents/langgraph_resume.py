"""A graph that is resumed after an approval: python3 agents/langgraph_resume.py case-8 'Refund order A-1002.'"""

import asyncio
import sys

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from tickfleet import AsyncFleet
from tickfleet.adapters.langgraph import fleet_node
from tickfleet.client import ReplyTimeout


async def main(thread: str, question: str) -> None:
    async with AsyncFleet(tenant="acme") as fleet:
        model = ChatOpenAI(model="gpt-5").bind_tools(await fleet.tools("support"))

        async def agent(state: MessagesState) -> dict:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("agent", agent)
        graph.add_node("tools", fleet_node(fleet, "support", timeout=3))
        graph.add_edge(START, "agent")
        graph.add_conditional_edges("agent", tools_condition)
        graph.add_edge("tools", "agent")
        app = graph.compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": thread}}
        # ANCHOR: resume
        try:
            state = await app.ainvoke({"messages": [("user", question)]}, config, durability="sync")
        except ReplyTimeout as error:
            await asyncio.to_thread(input, f"Approve the call of turn {error.id}, then press Enter. ")
            state = await app.ainvoke(None, config, durability="sync")
        # ANCHOR_END: resume
        print(state["messages"][-1].content)


asyncio.run(main(sys.argv[1], sys.argv[2]))
