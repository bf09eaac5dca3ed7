"""Agents of three frameworks run their tools through a fleet with caps: `adapters.py [NAME…]`, against `REDIS_URL`. If
`GATEWAY_URL` and `GATEWAY_KEY` are set, one of the agents then also runs through the gateway.

The models are stubs. Each asks for the same two calls: one that is granted, and one that the daily cap of agent
`frugal` rejects. The stub then answers with the results that it received.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from tickfleet import AsyncFleet

CALLS = [("call_1", "echo", '{"text":"hi"}'), ("call_2", "echo", '{"text":"again"}')]


def judge(name: str, reported: list[str]) -> None:
    """The model must receive two results: the output of the first call, and the cap that rejected the second call."""
    assert len(reported) == 2, f"{name}: {reported}"
    assert reported[0] == '{"text":"hi"}', f"{name}: {reported}"
    assert "resets_at" in reported[1], f"{name}: {reported}"


async def openai_agents(fleet: AsyncFleet) -> None:
    from agents import Agent, Runner, set_tracing_disabled
    from resumed import asking_model
    from tickfleet.adapters.openai_agents import fleet_tools

    set_tracing_disabled(True)
    reported: list[str] = []

    def ask(results: list[str]) -> list[tuple[str | None, str, str, str]]:
        reported[:] = results
        return [(None, *call) for call in CALLS[len(results) : len(results) + 1]]

    # The run needs an ID, because this model sets no call IDs.
    agent = Agent(name="frugal", model=asking_model(ask), tools=await fleet_tools(fleet, "frugal", run_id="run-1"))
    result = await Runner.run(agent, "Go.")
    assert result.final_output == "done"
    judge("openai_agents", reported)


async def langgraph(fleet: AsyncFleet) -> None:
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import END, START, MessagesState, StateGraph
    from tickfleet.adapters.langgraph import fleet_node

    async def model(state: MessagesState) -> dict[str, Any]:
        if any(message.type == "tool" for message in state["messages"]):
            return {"messages": [AIMessage("done")]}
        text = ("hi", "again")
        calls = [{"id": id, "name": tool, "args": {"text": text[at]}} for at, (id, tool, _) in enumerate(CALLS)]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", fleet_node(fleet, "frugal"))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    state = await graph.compile().ainvoke({"messages": [HumanMessage("Go.")]})
    reported = [message for message in state["messages"] if message.type == "tool"]
    assert [(message.status, message.tool_call_id) for message in reported] == [("success", "call_1"), ("error", "call_2")]
    judge("langgraph", [str(message.content) for message in reported])


async def pydantic_ai(fleet: AsyncFleet) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from tickfleet.adapters.pydantic_ai import FleetToolset

    reported: list[str] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        assert "echo" in [tool.name for tool in info.function_tools]
        parts = [part for message in messages for part in message.parts]
        returns = [part.model_response_str() for part in parts if isinstance(part, ToolReturnPart)]
        if len(returns) < len(CALLS):
            id, tool, arguments = CALLS[len(returns)]
            return ModelResponse([ToolCallPart(tool, arguments, id)])
        reported.extend(returns)
        return ModelResponse([TextPart("done")])

    agent = Agent(FunctionModel(model), toolsets=[FleetToolset(fleet, "frugal")])
    result = await agent.run("Go.")
    assert result.output == "done"
    judge("pydantic_ai", reported)


async def main(names: list[str]) -> None:
    for name in names or ["openai_agents", "langgraph", "pydantic_ai"]:
        # Each framework has its own tenant, so that no framework uses up another's caps.
        async with AsyncFleet(tenant=name.replace("_", "-")) as fleet:
            await globals()[name](fleet)
        print(f"{name}: ok")
    if gateway := os.environ.get("GATEWAY_URL"):
        async with AsyncFleet(gateway, api_key=os.environ["GATEWAY_KEY"]) as fleet:
            await langgraph(fleet)
        print("through a gateway: ok")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
