"""A graph that an approval interrupts: python3 agents/langgraph_approve.py case-8 'Refund order A-1002.'

After the decision, resume it: python3 agents/langgraph_approve.py case-8
"""

import sys

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import Command
from tickfleet import Fleet
from tickfleet.adapters.langgraph import fleet_node, fleet_tools


def main(thread: str, question: str | None = None) -> None:
    with Fleet(tenant="acme") as fleet, SqliteSaver.from_conn_string("threads.db") as saver:
        model = ChatOpenAI(model="gpt-5").bind_tools(fleet_tools(fleet, "support"))

        def agent(state: MessagesState) -> dict:
            return {"messages": [model.invoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("agent", agent)
        graph.add_node("tools", fleet_node(fleet, "support"))
        graph.add_edge(START, "agent")
        graph.add_conditional_edges("agent", tools_condition)
        graph.add_edge("tools", "agent")
        app = graph.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": thread}}
        # ANCHOR: resume
        # Any value resumes the thread. The node then asks the fleet.
        input = Command(resume=True) if question is None else {"messages": [("user", question)]}
        state = app.invoke(input, config, durability="sync")
        if "__interrupt__" in state:
            approval = state["__interrupt__"][0].value
            print(approval["tool"], approval["arguments"], "waits for", approval["approval"])
        else:
            print(state["messages"][-1].content)
        # ANCHOR_END: resume


main(*sys.argv[1:])
