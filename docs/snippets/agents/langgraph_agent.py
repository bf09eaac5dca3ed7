"""An agent of LangGraph: python3 agents/langgraph_agent.py case-7 'Refund order A-1001.'"""

# ANCHOR: agent
import asyncio
import sys

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from tickfleet import AsyncFleet
from tickfleet.adapters.langgraph import fleet_node, fleet_tools


async def main(thread: str, question: str) -> None:
    async with AsyncFleet(tenant="acme") as fleet:
        model = ChatOpenAI(model="gpt-5").bind_tools(await fleet_tools(fleet, "support"))

        async def agent(state: MessagesState) -> dict:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("agent", agent)
        graph.add_node("tools", fleet_node(fleet, "support"))
        graph.add_edge(START, "agent")
        graph.add_conditional_edges("agent", tools_condition)
        graph.add_edge("tools", "agent")

        app = graph.compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": thread}}
        state = await app.ainvoke({"messages": [("user", question)]}, config, durability="sync")
        print(state["messages"][-1].content)


asyncio.run(main(sys.argv[1], sys.argv[2]))
# ANCHOR_END: agent
