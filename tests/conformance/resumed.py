"""Agents of three frameworks are retried and resumed, and pay once: `resumed.py [NAME…]`, against
`REDIS_URL`, with a running fleet that has the configuration in `bank/conf`. The models are stubs. They give every
payment the call ID `call_1`, as some providers do, and ask for the same payment unless a case sets another one.
Payments are counted in the bank's ledger, not in the results that the agents received. `payments.py` has the cases that
every framework has.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tickfleet import AsyncFleet
from tickfleet.client import Conflict, InvalidMessage, TurnFields

BOB = {"to": "bob", "amount": 10}


class Bank:
    """A separate ledger for one case."""

    def __init__(self, ledger: str | None = None, seconds: float = 0.0) -> None:
        self.ledger = Path(ledger or Path(tempfile.mkdtemp()) / "ledger")
        self.seconds = seconds

    def fields(self) -> TurnFields:
        return {"user_context": {"ledger": str(self.ledger), "seconds": self.seconds}}

    def payments(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    async def has_paid(self, payments: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.payments()) < payments:
            assert time.monotonic() < deadline, f"{self.payments()}"
            # The ledger is a file, so this polls.
            await asyncio.sleep(0.01)

    async def paid(self, payments: int, what: str) -> None:
        await self.has_paid(payments)
        # No event reports that an extra payment is absent, so this waits for one tick plus the duration of a call.
        await asyncio.sleep(0.4 + self.seconds)
        assert len(self.payments()) == payments, f"{what}: expected {payments}, found {self.payments()}"
        print(f"{what}: ok")


def fleet() -> AsyncFleet:
    return AsyncFleet(tenant="bank")


def graph_of(
    fleet: Any,
    bank: Bank,
    saver: Any = None,
    payments: int = 1,
    tool: str = "pay",
    blocking: bool = False,
    retry_policy: Any = None,
    **more: Any,
) -> Any:
    """Returns a graph that asks for `payments` equal payments, each in its own message, and then ends."""
    from langchain_core.messages import AIMessage
    from langgraph.graph import END, START, MessagesState, StateGraph
    from tickfleet.adapters.langgraph import fleet_node

    def answer(state: MessagesState) -> dict[str, Any]:
        done = sum(message.type == "tool" for message in state["messages"])
        if done >= payments:
            return {"messages": [AIMessage("done")]}
        return {"messages": [AIMessage("", tool_calls=[{"id": "call_1", "name": tool, "args": BOB}])]}

    async def model(state: MessagesState) -> dict[str, Any]:
        return answer(state)

    graph = StateGraph(MessagesState)
    graph.add_node("model", answer if blocking else model)
    graph.add_node("tools", fleet_node(fleet, "kelly", **bank.fields(), **more), retry_policy=retry_policy)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def chat_model(*messages: Any) -> Any:
    """Returns a chat model that gives these messages in order, with a new ID for each."""
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **more: Any) -> Any:
            self.bound = tools
            return self

        def reset(self, at: int = 1) -> None:
            """Restarts the messages at index `at`."""
            self.messages = iter([message.model_copy(update={"id": uuid.uuid4().hex}) for message in messages][at:])

    Scripted.model_config["extra"] = "allow"
    Scripted.model_rebuild(force=True)
    made = Scripted(messages=iter(()))
    made.reset(0)
    return made


def thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": uuid.uuid4().hex}}


def go() -> dict[str, Any]:
    from langchain_core.messages import HumanMessage

    return {"messages": [HumanMessage("Pay bob.")]}


async def langgraph_retried(fleet: AsyncFleet) -> None:
    from langgraph.types import RetryPolicy

    bank = Bank(seconds=1.2)
    policy = RetryPolicy(max_attempts=10, initial_interval=0.05, backoff_factor=1.0, retry_on=lambda error: True)
    state = await graph_of(fleet, bank, retry_policy=policy, timeout=0.5).ainvoke(go())
    assert [message.content for message in state["messages"] if message.type == "tool"] == ["paid 10 to bob"]
    await bank.paid(1, "langgraph: a node is retried after a short time-out, without a checkpoint")


async def resume(stored: str, thread_id: str, ledger: str, tool: str = "pay") -> None:
    """Resumes a thread in another process."""
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    saver = InMemorySaver()
    threads, writes, blobs = pickle.loads(Path(stored).read_bytes())
    for id, spaces in threads.items():
        saver.storage[id].update(spaces)
    saver.writes.update(writes)
    saver.blobs.update(blobs)
    async with fleet() as own:
        graph = graph_of(own, Bank(ledger, seconds=1.5), saver, tool=tool)
        input = None if tool == "pay" else Command(resume=True)
        state = await graph.ainvoke(input, {"configurable": {"thread_id": thread_id}})
    assert state["messages"][-2].content == "paid 10 to bob", state


async def langgraph_intended(fleet: AsyncFleet) -> None:
    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, StateGraph
    from tickfleet.adapters.langgraph import fleet_node
    from typing_extensions import TypedDict

    bank = Bank()
    graph = graph_of(fleet, bank, InMemorySaver(), payments=2)
    await graph.ainvoke(go(), thread())
    await bank.paid(2, "langgraph: an equal call in a later message is a second call")
    await graph.ainvoke(go(), thread())
    await bank.paid(4, "langgraph: equal calls of another thread are other calls")

    class Plain(TypedDict):
        messages: list[Any]

    for id in (None, "msg_1"):
        bank = Bank()
        plain = StateGraph(Plain)
        plain.add_node("tools", fleet_node(fleet, "kelly", **bank.fields()))
        plain.add_edge(START, "tools")
        plain.add_edge("tools", END)
        message = AIMessage("", id=id, tool_calls=[{"id": "call_1", "name": "pay", "args": BOB}])
        for _ in range(2):
            await plain.compile().ainvoke({"messages": [message]})
        await bank.paid(2, f"langgraph: runs without a thread are apart, with messages called {id}")

    node = fleet_node(fleet, "kelly", **bank.fields())
    await refuses(node({"messages": [message]}), "to a graph")
    print("langgraph: outside of a graph it says what is missing: ok")


def is_conflict(error: BaseException) -> bool:
    """Returns whether a call was refused because its id has other arguments."""
    # The SDK wraps the exception of a tool. The SDK itself rejects changed arguments of an approved call.
    refusal = error.__cause__ or error
    return isinstance(refusal, Conflict) or "different invocation" in str(refusal)


async def langchain_resumed(fleet: AsyncFleet) -> None:
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.memory import InMemorySaver
    from tickfleet.adapters.langgraph import fleet_tools

    def pays() -> AIMessage:
        return AIMessage("", tool_calls=[{"id": "call_1", "name": "pay", "args": BOB}])

    bank = Bank()
    tools = await fleet_tools(fleet, "kelly", **bank.fields())
    model = chat_model(pays(), pays(), AIMessage("done"))
    await create_agent(model, tools, checkpointer=InMemorySaver()).ainvoke(go(), thread())
    await bank.paid(2, "langchain: an equal call in a later message is a second call")

    (tool,) = [tool for tool in tools if tool.name == "pay"]
    await refuses(tool.ainvoke({"name": "pay", "args": BOB, "id": "call_1", "type": "tool_call"}), "to a graph")
    await bank.paid(2, "langchain: a tool outside of a graph is refused")


async def refuses(work: Any, says: str) -> None:
    try:
        await work
    except Exception as error:
        # The OpenAI Agents SDK wraps the exception of a tool.
        assert isinstance(error, InvalidMessage) or isinstance(error.__cause__, InvalidMessage), repr(error)
        assert says in str(error), error
    else:
        raise AssertionError(f"expected a refusal that says {says!r}")


def asking_model(ask: Callable[[list[str]], list[tuple[str | None, str, str, str]]]) -> Any:
    """Returns a model that makes the calls of `ask`: ID of the item, ID of the call, tool and arguments. `ask` gets the
    results so far. Without further calls, the model ends."""
    from agents import ModelResponse, Usage
    from agents.models.interface import Model
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class StandIn(Model):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> ModelResponse:
            calls = ask([entry["output"] for entry in input if entry.get("type") == "function_call_output"])
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            output: list[Any] = [
                ResponseFunctionToolCall(id=item, type="function_call", call_id=id, name=tool, arguments=arguments)
                for item, id, tool, arguments in calls
            ]
            message = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
            return ModelResponse(output=output or [message], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **more: Any) -> Any:
            raise NotImplementedError

    return StandIn()


def agents_model(item: str | None, payments: int = 1, tool: str = "pay") -> Any:
    """Returns a model that asks for payments one after another. Each payment has `item` as the ID of its item."""

    def ask(results: list[str]) -> list[tuple[str | None, str, str, str]]:
        # Within a run, the SDK itself rejects a repeated ID.
        call = (item, f"call_{len(results) + 1}", tool, json.dumps(BOB))
        return [call] if len(results) < payments else []

    return asking_model(ask)


async def openai_agent(fleet: AsyncFleet, bank: Bank, item: str | None, run_id: Any, payments: int = 1) -> Any:
    from agents import Agent, set_tracing_disabled
    from tickfleet.adapters.openai_agents import fleet_tools

    set_tracing_disabled(True)
    tools = await fleet_tools(fleet, "kelly", run_id=run_id, **bank.fields())
    for tool in tools:
        tool.needs_approval = True
    return Agent(name="kelly", model=agents_model(item, payments), tools=tools)


async def openai_agents_resumed(fleet: AsyncFleet) -> None:
    from agents import RunState, Runner

    async def paused(agent: Any, context: Any = None) -> str:
        return (await Runner.run(agent, "Pay bob.", context=context)).to_state().to_string()

    async def resumed(agent: Any, saved: str) -> str:
        """Approves everything that waits, until the run ends."""
        state = await RunState.from_string(agent, saved)
        while True:
            for waiting in state.get_interruptions():
                state.approve(waiting)
            result = await Runner.run(agent, state)
            if not result.interruptions:
                return str(result.final_output)
            state = result.to_state()

    def order(context: Any) -> str:
        return str(context.context["order"])

    bank = Bank()
    # Short item IDs are counters, so other runs use the same IDs.
    agent = await openai_agent(fleet, bank, "fc_1", order, payments=2)
    for paid in (2, 4):
        saved = await paused(agent, {"order": uuid.uuid4().hex})
        await resumed(agent, saved)
        await resumed(agent, saved)
        await bank.paid(paid, "openai_agents: equal calls of a run, and of another run, are other calls")

    for item in (None, "fc_1", "__fake_id__"):
        agent = await openai_agent(fleet, bank, item, None)
        await refuses(resumed(agent, await paused(agent)), "run_id=")
    await bank.paid(4, "openai_agents: a call that nothing tells from others is refused, and says what to pass")


def pydantic_agent(
    fleet: AsyncFleet, bank: Bank, payments: int = 1, run_id: Any = None, asks: bool = True, timeout: float = 30.0
) -> Any:
    """Returns an agent that makes payments. If `asks`, people must approve each payment first."""
    from pydantic_ai import Agent, DeferredToolRequests
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from tickfleet.adapters.pydantic_ai import FleetToolset

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        if sum(isinstance(part, ToolReturnPart) for part in parts) >= payments:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("pay", json.dumps(BOB), "call_1")])

    tools = FleetToolset(fleet, "kelly", run_id=run_id, timeout=timeout, **bank.fields())
    toolset = tools.approval_required() if asks else tools
    return Agent(FunctionModel(model), toolsets=[toolset], output_type=[str, DeferredToolRequests])


async def pydantic_ai_resumed(fleet: AsyncFleet) -> None:
    from pydantic_ai import DeferredToolResults
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    yes = DeferredToolResults(approvals={"call_1": True})

    async def paused(agent: Any) -> bytes:
        return bytes((await agent.run("Pay bob.")).all_messages_json())

    bank = Bank()
    agent = pydantic_agent(fleet, bank, payments=2, asks=False)
    await agent.run("Pay bob twice.")
    await bank.paid(2, "pydantic_ai: an equal call in a later message is a second call")

    bank = Bank()
    agent = pydantic_agent(fleet, bank)
    foreign = ModelMessagesTypeAdapter.validate_json(await paused(agent))
    for message in foreign:
        message.run_id = None
    await refuses(agent.run(message_history=foreign, deferred_tool_results=yes), "run_id=")
    named = pydantic_agent(fleet, bank, run_id=uuid.uuid4().hex)
    for message in foreign:
        if isinstance(message, ModelResponse):
            for _ in range(2):
                message.timestamp = message.timestamp.replace(microsecond=time.monotonic_ns() % 1_000_000)
                await named.run(message_history=foreign, deferred_tool_results=yes)
    await bank.paid(1, "pydantic_ai: a history that names no run is refused, and resumed where its run is named")


CASES = [
    langgraph_retried,
    langgraph_intended,
    langchain_resumed,
    openai_agents_resumed,
    pydantic_ai_resumed,
]


async def play(cases: list[Callable[[AsyncFleet], Any]], names: list[str]) -> None:
    """Plays the named cases, or all of them, and ends the program with the failures."""
    failed = []
    for case in cases:
        if names and case.__name__ not in names:
            continue
        async with fleet() as own:
            try:
                await asyncio.wait_for(case(own), 120)
            except Exception as error:
                failed.append(f"{case.__name__}: {type(error).__name__}: {error}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    if sys.argv[1:2] == ["resume"]:
        asyncio.run(resume(*sys.argv[2:]))
    else:
        asyncio.run(play(CASES, sys.argv[1:]))
