"""A program with all adapters, for type checkers: `mypy --strict`, `pyright`. It is never run."""

from __future__ import annotations

from dataclasses import dataclass

from agents import Agent as SdkAgent, RunContextWrapper, Runner
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from pydantic_ai import Agent, DeferredToolRequests, RunContext
from tickfleet import AsyncFleet, Fleet
from tickfleet.adapters import langgraph as lg
from tickfleet.adapters import openai_agents as oa
from tickfleet.adapters.pydantic_ai import FleetToolset
from tickfleet.client import Reply


@dataclass
class Deps:
    user: str


def user_of(runtime: lg.Context) -> dict[str, str]:
    return {"user": runtime.context["user"]}


def user_of_run(run: RunContextWrapper[Deps]) -> str:
    return run.context.user


def user_of_deps(ctx: RunContext[Deps]) -> str:
    return ctx.deps.user


async def langgraph_agents(fleet: AsyncFleet, model: BaseChatModel) -> None:
    node = lg.fleet_node(fleet, "kelly", user_context=user_of, session_id=lambda run: str(run.context["user"]))
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.add_edge(START, "tools")
    app = graph.compile(checkpointer=InMemorySaver())
    await app.ainvoke({"messages": []}, {"configurable": {"thread_id": "case-7"}})
    await app.ainvoke(Command(resume=True), {"configurable": {"thread_id": "case-7"}})
    tools = await lg.fleet_tools(fleet, "kelly", allowed_tools=["pay"], priority="high")
    model.bind_tools(tools)
    graph.add_node("other", ToolNode(tools))
    agent = create_agent(model, tools, checkpointer=InMemorySaver())
    await agent.ainvoke({"messages": [{"role": "user", "content": "Pay bob."}]})


def blocking_agent(fleet: Fleet, model: BaseChatModel) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", lg.fleet_node(fleet, "kelly"))
    model.bind_tools(lg.fleet_tools(fleet, "kelly"))


async def openai_agent(fleet: AsyncFleet) -> None:
    tools = await oa.fleet_tools(fleet, "kelly", run_id=user_of_run, user_context=user_of_run, interrupt=True)
    agent = SdkAgent[Deps](name="kelly", tools=tools)
    result = await Runner.run(agent, "Pay bob.", context=Deps("ann"))
    print([notice["approval"] for notice in tools.approvals(result)])
    state = result.to_state()
    for item in result.interruptions:
        state.approve(item)


async def pydantic_agent(fleet: AsyncFleet) -> None:
    toolset = FleetToolset(fleet, "kelly", run_id=user_of_deps, user_context=user_of_deps, session_id=user_of_deps)
    agent = Agent("openai:gpt-5", deps_type=Deps, output_type=[str, DeferredToolRequests], toolsets=[toolset])
    result = await agent.run("Pay bob.", deps=Deps("ann"))
    if isinstance(result.output, DeferredToolRequests):
        results = await toolset.results(result.output)
        await agent.run(message_history=result.all_messages(), deferred_tool_results=results, deps=Deps("ann"))


async def client(fleet: AsyncFleet) -> str:
    turn = await fleet.submit("kelly", calls=[{"name": "pay"}])
    found = await turn.reply_or_approval()
    return found.status if isinstance(found, Reply) else found.call
