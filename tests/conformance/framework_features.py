"""Checks that adapters support their framework's run context, failed calls, parallel calls and kinds of state.
`framework_features.py [NAME…]`, against `REDIS_URL`, with a running fleet that has the configuration in `bank/conf`."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages
from resumed import Bank, asking_model, chat_model, go, play, thread
from tickfleet import AsyncFleet, Fleet
from tickfleet.client import InvalidMessage

# The two balances wait for each other, so they must run at the same time.
TOGETHER = [("balance", {"account": "amy"}), ("balance", {"account": "bob"})]
STATEMENT = [("statement", {"account": "amy"})]
FAILS = [("balance", {"account": "nobody"}), ("balance", {"acount": "amy"})]


@dataclass
class Deps:
    """Arguments that a program passes to each run."""

    user: str
    ledger: str = field(default_factory=lambda: str(Path(tempfile.mkdtemp()) / "ledger"))

    def user_context(self, together: bool = True) -> dict[str, Any]:
        accounts = ["amy", "bob"] if together else []
        return {"user": self.user, "ledger": self.ledger, "together": accounts, "seconds": 0.0}


def seen(user: str, account: str) -> str:
    return f"{user} sees 100 of {account}, session data chat of {user}"


def asks(calls: list[tuple[str, dict[str, Any]]]) -> Any:
    from langchain_core.messages import AIMessage

    made = [{"id": f"call_{at}", "name": name, "args": arguments} for at, (name, arguments) in enumerate(calls)]
    return AIMessage("", id=uuid.uuid4().hex, tool_calls=made)


def fields(together: bool = True) -> dict[str, Any]:
    return {
        "user_context": lambda run: run.context.user_context(together),
        "session_data": lambda run: f"chat of {run.context.user}",
        "session_id": lambda run: run.config["configurable"]["thread_id"],
        "deadline": lambda run: timedelta(minutes=1),
    }


async def langgraph_contexts(fleet: AsyncFleet) -> None:
    from langgraph.graph import START, MessagesState, StateGraph
    from tickfleet.adapters.langgraph import fleet_node

    graph = StateGraph(MessagesState, context_schema=Deps)
    graph.add_node("tools", fleet_node(fleet, "kelly", **fields()))
    graph.add_edge(START, "tools")
    app = graph.compile()
    for user in ("ann", "ben"):
        state = await app.ainvoke({"messages": [asks(TOGETHER)]}, thread(), context=Deps(user))
        reported = [message.content for message in state["messages"][1:]]
        assert reported == [seen(user, "amy"), seen(user, "bob")], reported
    print("langgraph: context, session and deadline belong to each run; reads of a message run in parallel: ok")

    late = StateGraph(MessagesState, context_schema=Deps)
    more = {**fields(), "deadline": lambda run: timedelta(seconds=-1 if run.context.user == "late" else 60)}
    late.add_node("tools", fleet_node(fleet, "kelly", **more))
    late.add_edge(START, "tools")
    statuses = {}
    for user in ("late", "ann"):
        state = await late.compile().ainvoke({"messages": [asks(TOGETHER)]}, thread(), context=Deps(user))
        statuses[user] = [message.status for message in state["messages"][1:]]
    assert statuses == {"late": ["error", "error"], "ann": ["success", "success"]}, statuses
    print("langgraph: a deadline of the run ends its calls: ok")


async def langgraph_states(fleet: AsyncFleet) -> None:
    from langgraph.graph import START, StateGraph
    from pydantic import BaseModel
    from tickfleet.adapters.langgraph import fleet_node

    class Model(BaseModel):
        chat: Annotated[list[AnyMessage], add_messages]

    @dataclass
    class Data:
        chat: Annotated[list[AnyMessage], add_messages]

    bank = Bank()
    with Fleet(tenant="bank") as client:
        for schema in (Model, Data):
            for made in (fleet, client):
                graph = StateGraph(schema)
                graph.add_node("tools", fleet_node(made, "kelly", messages_key="chat", **bank.fields()))
                graph.add_edge(START, "tools")
                app = graph.compile()
                input = {"chat": [asks([("pay", {"to": "bob", "amount": 1})])]}
                state = app.invoke(input) if made is client else await app.ainvoke(input)
                assert state["chat"][-1].content == "paid 1 to bob", state
        state = await app.ainvoke({"chat": [asks([("pay", {"to": "bob", "amount": 1})])]})
        assert state["chat"][-1].content == "paid 1 to bob", state
        node = fleet_node(client, "kelly", **bank.fields())
        listed = StateGraph(Annotated[list[AnyMessage], add_messages])
        listed.add_node("tools", node)
        listed.add_edge(START, "tools")
        assert listed.compile().invoke([asks([("pay", {"to": "bob", "amount": 1})])])[-1].content == "paid 1 to bob"
    await bank.paid(6, "langgraph: states are Pydantic models, data classes or lists, in blocking graphs, too")


async def langgraph_narrowed(fleet: AsyncFleet) -> None:
    from langgraph.graph import START, MessagesState, StateGraph
    from tickfleet.adapters.langgraph import fleet_node, fleet_tools

    every = [tool.name for tool in await fleet_tools(fleet, "kelly")]
    assert every == ["balance", "pay", "statement", "transfer"], every
    builtin = [tool.name for tool in await fleet_tools(fleet, "kelly", builtin_tools=True)]
    assert {"check_task", "fetch_result", "list_tools", *every} == set(builtin), builtin
    assert [tool.name for tool in await fleet_tools(fleet, "kelly", allowed_tools=["pay"])] == ["pay"]
    both = await fleet_tools(fleet, "kelly", allowed_tools=["pay", "fetch_result"])
    assert [tool.name for tool in both] == ["fetch_result", "pay"], both

    bank = Bank()
    graph = StateGraph(MessagesState)
    graph.add_node("tools", fleet_node(fleet, "kelly", allowed_tools=["balance"], **bank.fields()))
    graph.add_edge(START, "tools")
    calls = [("pay", {"to": "bob", "amount": 1}), ("list_tools", {}), ("balance", {"account": "amy"})]
    state = await graph.compile().ainvoke({"messages": [asks(calls)]})
    assert [message.status for message in state["messages"][1:]] == ["error", "error", "success"], state
    for wrong in ({"turn_id": "x"}, {"allowed_tools": "pay"}, {"pending_approval": True}):
        try:
            fleet_node(fleet, "kelly", **wrong)  # type: ignore[call-overload]
        except InvalidMessage:
            continue
        raise AssertionError(f"expected a refusal of {wrong}")
    await bank.paid(0, "langgraph: allowed_tools narrows what the model sees and may call")


async def langgraph_images(fleet: AsyncFleet) -> None:
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph
    from tickfleet.adapters.langgraph import fleet_node, fleet_tools

    image = {"type": "image", "base64": "R0lGODlh", "mime_type": "image/gif"}
    expected = [{"type": "text", "text": "statement of amy"}, image]
    graph = StateGraph(MessagesState)
    graph.add_node("tools", fleet_node(fleet, "kelly"))
    graph.add_edge(START, "tools")
    state = await graph.compile().ainvoke({"messages": [asks(STATEMENT)]})
    assert state["messages"][-1].content == expected, state
    model = chat_model(asks(STATEMENT), AIMessage("done"))
    state = await create_agent(model, await fleet_tools(fleet, "kelly")).ainvoke(go(), thread())
    [reported] = [message.content for message in state["messages"] if message.type == "tool"]
    assert reported == expected, reported
    print("langgraph: images are content blocks of the message: ok")


async def langchain_agents(fleet: AsyncFleet) -> None:
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage
    from tickfleet.adapters.langgraph import fleet_tools

    with Fleet(tenant="bank") as client:
        for made in (fleet, client):
            found = fleet_tools(made, "kelly", **fields())
            tools = found if made is client else await found
            model = chat_model(asks(TOGETHER), asks(FAILS), AIMessage("done"))
            agent = create_agent(model, tools, context_schema=Deps)
            if made is client:
                state = await asyncio.to_thread(agent.invoke, go(), thread(), context=Deps("ann"))
            else:
                state = await agent.ainvoke(go(), thread(), context=Deps("ann"))
            reported = [message for message in state["messages"] if message.type == "tool"]
            assert [message.content for message in reported[:2]] == [seen("ann", "amy"), seen("ann", "bob")], reported
            assert [message.status for message in reported] == ["success", "success", "error", "error"], reported
            assert "no account of nobody" in reported[2].content and "acount" in reported[3].content, reported
        model = chat_model(asks(TOGETHER), AIMessage("done"))
        state = await create_agent(model, tools, context_schema=Deps).ainvoke(go(), thread(), context=Deps("ben"))
        reported = [message.content for message in state["messages"] if message.type == "tool"]
        assert reported == [seen("ben", "amy"), seen("ben", "bob")], reported
    print("langchain: an agent has the context of its run, failed calls, and parallel calls: ok")


async def openai_agents_features(fleet: AsyncFleet) -> None:
    from agents import Agent, Runner, set_trace_processors, set_tracing_disabled
    from agents.tracing import TracingProcessor
    from tickfleet.adapters.openai_agents import fleet_tools

    reported: list[str] = []

    def ask(results: list[str]) -> list[tuple[str | None, str, str, str]]:
        reported[:] = results
        if len(results) >= 4:
            return []
        return [
            (f"fc_{uuid.uuid4().hex}", f"call_{len(results) + at}", name, json.dumps(arguments))
            for at, (name, arguments) in enumerate(FAILS if results else TOGETHER)
        ]

    errors: list[Any] = []

    class Spans(TracingProcessor):
        def on_span_end(self, span: Any) -> None:
            if span.error is not None:
                errors.append(span.error["data"])

        def on_trace_start(self, trace: Any) -> None: ...
        def on_trace_end(self, trace: Any) -> None: ...
        def on_span_start(self, span: Any) -> None: ...
        def shutdown(self) -> None: ...
        def force_flush(self) -> None: ...

    set_tracing_disabled(False)
    set_trace_processors([Spans()])
    more: dict[str, Any] = {
        "user_context": lambda run: run.context.user_context(),
        "session_data": lambda run: f"chat of {run.context.user}",
        "session_id": lambda run: run.context.user,
        "deadline": lambda run: timedelta(minutes=1),
    }
    for interrupt in (False, True):
        reported.clear()
        errors.clear()
        run_id = f"run-{uuid.uuid4().hex}" if interrupt else None
        tools = await fleet_tools(fleet, "kelly", interrupt=interrupt, run_id=run_id, **more)
        assert [tool.name for tool in tools] == ["balance", "pay", "statement", "transfer"], tools
        result = await Runner.run(Agent(name="kelly", model=asking_model(ask), tools=tools), "Go.", context=Deps("ann"))
        assert result.final_output == "done", result
        assert reported[:2] == [seen("ann", "amy"), seen("ann", "bob")], reported
        assert "no account of nobody" in reported[2] and "acount" in reported[3], reported
        found = sorted((error["tool_name"], error["outcome"]) for error in errors)
        assert found == [("balance", "invalid_arguments"), ("balance", "permanent")], errors
    set_trace_processors([])
    set_tracing_disabled(True)
    assert [tool.name for tool in await fleet_tools(fleet, "kelly", allowed_tools=["pay"])] == ["pay"]
    try:
        await fleet_tools(fleet, "kelly", interrupt=True)
    except InvalidMessage as error:
        assert "run_id" in str(error)
    else:
        raise AssertionError("expected a refusal of interrupt without run_id")
    print("openai_agents: a call has the context of its run; failed and parallel calls as in the SDK: ok")


async def openai_agents_images(fleet: AsyncFleet) -> None:
    from agents import RunContextWrapper
    from agents.tool_context import ToolContext
    from openai.types.responses import ResponseFunctionToolCall
    from tickfleet.adapters.openai_agents import fleet_tools

    [tool] = await fleet_tools(fleet, "kelly", allowed_tools=["statement"], run_id=uuid.uuid4().hex)
    arguments = json.dumps(STATEMENT[0][1])
    call = ResponseFunctionToolCall(type="function_call", call_id="call_1", name="statement", arguments=arguments)
    wrapper: Any = RunContextWrapper(None)
    context = ToolContext.from_agent_context(wrapper, "call_1", tool_call=call)
    text, image = await tool.on_invoke_tool(context, arguments)
    assert (text.text, image.image_url) == ("statement of amy", "data:image/gif;base64,R0lGODlh"), (text, image)
    print("openai_agents: images are image outputs: ok")


async def pydantic_ai_images(fleet: AsyncFleet) -> None:
    from pydantic_ai import Agent, BinaryContent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from tickfleet.adapters.pydantic_ai import FleetToolset

    def model(messages: list[Any], info: Any) -> ModelResponse:
        if any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart(name, json.dumps(arguments), "call_1") for name, arguments in STATEMENT])

    toolset: Any = FleetToolset(fleet, "kelly")
    result = await Agent(FunctionModel(model), toolsets=[toolset]).run("Go.")
    parts = [part for message in result.all_messages() for part in message.parts if part.part_kind == "tool-return"]
    text, image = parts[0].content
    assert text == "statement of amy" and isinstance(image, BinaryContent), parts
    assert (image.data, image.media_type) == (b"GIF89a", "image/gif"), image
    print("pydantic_ai: images are binary content: ok")


async def pydantic_ai_features(fleet: AsyncFleet) -> None:
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.messages import ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel
    from tickfleet.adapters.pydantic_ai import FleetToolset

    def model(messages: list[Any], info: Any) -> ModelResponse:
        responses = sum(isinstance(message, ModelResponse) for message in messages)
        if responses == 2:
            return ModelResponse([TextPart("done")])
        calls = FAILS if responses else TOGETHER
        return ModelResponse(
            [
                ToolCallPart(name, json.dumps(arguments), f"call_{responses}_{at}")
                for at, (name, arguments) in enumerate(calls)
            ]
        )

    def user_of(ctx: RunContext[Deps]) -> dict[str, Any]:
        return ctx.deps.user_context()

    toolset = FleetToolset(
        fleet,
        "kelly",
        user_context=user_of,
        session_data=lambda ctx: f"chat of {ctx.deps.user}",
        session_id=lambda ctx: ctx.deps.user,
        deadline=lambda ctx: timedelta(minutes=1),
    )
    agent = Agent(FunctionModel(model), deps_type=Deps, toolsets=[toolset])
    for user in ("ann", "ben"):
        result = await agent.run("Go.", deps=Deps(user))
        parts = [part for message in result.all_messages() for part in message.parts]
        reported = [part for part in parts if isinstance(part, (ToolReturnPart, RetryPromptPart))]
        assert [part.content for part in reported[:2]] == [seen(user, "amy"), seen(user, "bob")], reported
        assert [part.outcome for part in reported] == ["success", "success", "failed", "retried"], reported
        assert "no account of nobody" in str(reported[2].content) and "acount" in str(reported[3].content), reported
    strict = FleetToolset(fleet, "kelly", user_context=user_of, max_retries=0)
    never = Agent(FunctionModel(model), deps_type=Deps, toolsets=[strict])
    try:
        await never.run("Go.", deps=Deps("ann"))
    except Exception as error:
        assert "max retries" in str(error), error
    else:
        raise AssertionError("expected that the retries are used up")
    shown: list[str] = []

    def look(messages: list[Any], info: Any) -> ModelResponse:
        shown[:] = sorted(tool.name for tool in info.function_tools)
        return ModelResponse([TextPart("done")])

    for more, expected in (
        ({}, ["balance", "pay", "statement", "transfer"]),
        ({"allowed_tools": ["pay"]}, ["pay"]),
        ({"allowed_tools": ["pay"], "builtin_tools": True}, ["check_task", "fetch_result", "list_tools", "pay"]),
    ):
        narrowed: Any = FleetToolset(fleet, "kelly", **more)  # type: ignore[arg-type]
        await Agent(FunctionModel(look), toolsets=[narrowed]).run("Go.")
        assert shown == expected, (shown, expected)
    print("pydantic_ai: a call has the context of its run; failed and parallel calls as in Pydantic AI: ok")


CASES: list[Callable[[AsyncFleet], Any]] = [
    langgraph_contexts,
    langgraph_states,
    langgraph_narrowed,
    langgraph_images,
    langchain_agents,
    openai_agents_features,
    openai_agents_images,
    pydantic_ai_features,
    pydantic_ai_images,
]


if __name__ == "__main__":
    asyncio.run(play(CASES, sys.argv[1:]))
