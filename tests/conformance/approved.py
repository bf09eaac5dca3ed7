"""Calls of agents wait for an approval of the fleet, and interrupt the runs of three frameworks: `approved.py [NAME…]`,
against `REDIS_URL`, and through the gateway `GATEWAY_URL` with `GATEWAY_KEY`. The program in `TICKFLEET` decides.

The fleet has the configuration in `bank/conf`. Payments are counted in the bank's ledger.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from resumed import Bank, agents_model, go, graph_of, play, thread
from tickfleet import AsyncFleet, Fleet
from tickfleet.client import PendingApproval, ReplyTimeout

PAID = "paid 10 to bob"


async def tickfleet(*arguments: str) -> str:
    command = [os.environ["TICKFLEET"], *arguments, "--config", "tests/conformance/bank/conf"]
    run = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await run.communicate()
    assert run.returncode == 0, said
    return said.decode()


async def decide(approval: str, verb: str = "approve") -> None:
    assert approval.startswith("bank:apr-"), approval
    await tickfleet("approvals", verb, approval, "--by", "ann", "--reason", "no invoice")


async def decide_all(verb: str = "approve") -> None:
    """Decides every call that waits, for runs that are not interrupted."""
    for approval in json.loads(await tickfleet("approvals", "list", "--json"))["items"]:
        await decide(f"bank:{approval['id']}", verb)


def through_gateway() -> AsyncFleet:
    return AsyncFleet(os.environ["GATEWAY_URL"], api_key=os.environ["GATEWAY_KEY"], tenant="bank")


def judge(notice: dict[str, Any]) -> None:
    """Interrupts must describe the approval."""
    assert notice["kind"] == "tickfleet_approval", notice
    assert (notice["tool"], notice["arguments"]) == ("transfer", {"to": "bob", "amount": 10}), notice
    assert notice["console"] == "https://fleet.example.com/console/#/approvals", notice
    # By default, the deadline of the turn is in 24 hours.
    until = time.mktime(time.strptime(notice["deadline"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert 23 * 3600 < until - time.time() < 25 * 3600, notice


async def client_reports(fleet: AsyncFleet) -> None:
    bank, calls = Bank(), [{"name": "transfer", "arguments": {"to": "bob", "amount": 10}}]
    id = uuid.uuid4().hex
    turn = {"calls": calls, "turn_id": id, **bank.fields()}
    async with through_gateway() as gateway:
        found = [await (await one.submit("kelly", **turn)).reply_or_approval(20) for one in (fleet, gateway, fleet)]
        assert all(isinstance(approval, PendingApproval) for approval in found), found
        assert {(approval.id, approval.call, approval.position) for approval in found} == {(found[0].id, f"{id}/0", 0)}
        try:
            await (await fleet.submit("kelly", **turn)).reply(0.5)
        except ReplyTimeout:
            pass
        else:
            raise AssertionError("expected no reply before the decision")
        waits = [asyncio.create_task(one.wait(id)) for one in (fleet, gateway)]
        await decide(f"bank:{found[0].id}")
        # The fleet knows the decision at once, but may not have run the call yet.
        for one in (fleet, gateway):
            reply = await (await one.submit("kelly", **turn)).reply_or_approval(20)
            assert reply.ok, reply
        assert all(reply.ok for reply in await asyncio.gather(*waits))
        other = {**turn, "calls": [{"name": "transfer", "arguments": {"to": "eve", "amount": 1}}]}
        for one in (fleet, gateway):
            short = await one.submit("kelly", calls=[{"name": "list_tools"}])
            assert (await short.reply_or_approval(20)).ok
        for one in (fleet, gateway):
            try:
                await (await one.submit("kelly", **other)).reply_or_approval(20)
            except Exception as error:
                assert type(error).__name__ == "Conflict", error
            else:
                raise AssertionError("expected a conflict")
    await bank.paid(1, "client: a turn reports its approval, over Redis and through a gateway")


async def invoked(graph: Any, input: Any, config: dict[str, Any], blocking: bool) -> Any:
    return await (asyncio.to_thread(graph.invoke, input, config) if blocking else graph.ainvoke(input, config))


async def langgraph_interrupted(fleet: AsyncFleet) -> None:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    async def interrupted(client: Any, what: str, blocking: bool = False) -> None:
        bank, config, saver = Bank(), thread(), InMemorySaver()

        def graph() -> Any:
            return graph_of(
                client, bank, saver, tool="transfer", console_url="https://fleet.example.com/", blocking=blocking
            )

        state = await invoked(graph(), go(), config, blocking)
        (first,) = state["__interrupt__"]
        judge(first.value)
        for value in ("not yet", {"still": "waiting"}):
            state = await invoked(graph(), Command(resume=value), config, blocking)
            (again,) = state["__interrupt__"]
            assert again.value == first.value, again
        assert bank.payments() == []
        await decide(first.value["approval"])
        await bank.has_paid(1)
        snapshot = graph().get_state(config)
        both = [invoked(graph(), Command(resume=True), snapshot.config, blocking) for _ in range(2)]
        for state in await asyncio.gather(*both):
            assert [message.content for message in state["messages"] if message.type == "tool"] == [PAID], state
        await bank.paid(1, f"langgraph: an approval interrupts the graph, {what}")

    await interrupted(fleet, "over Redis")
    async with through_gateway() as gateway:
        await interrupted(gateway, "through a gateway")
    with Fleet(tenant="bank") as client:
        await interrupted(client, "in a blocking graph", blocking=True)


async def langgraph_nested(fleet: AsyncFleet) -> None:
    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.types import Command
    from tickfleet.adapters.langgraph import fleet_node

    bank, config = Bank(), thread()
    calls = [{"id": f"call_{to}", "name": "transfer", "args": {"to": to, "amount": 10}} for to in ("bob", "amy")]
    inner = StateGraph(MessagesState)
    inner.add_node("model", lambda state: {"messages": [AIMessage("", tool_calls=calls)]})
    inner.add_node("tools", fleet_node(fleet, "kelly", **bank.fields()))
    inner.add_edge(START, "model")
    inner.add_edge("model", "tools")
    outer = StateGraph(MessagesState)
    outer.add_node("agent", inner.compile())
    outer.add_edge(START, "agent")
    app = outer.compile(checkpointer=InMemorySaver())
    state = await app.ainvoke(go(), config)
    for to in ("bob", "amy"):
        (one,) = state["__interrupt__"]
        assert one.value["arguments"]["to"] == to, one
        await decide(one.value["approval"])
        state = await app.ainvoke(Command(resume=True), config)
    reported = [message.content for message in state["messages"] if message.type == "tool"]
    assert reported == ["paid 10 to bob", "paid 10 to amy"], reported
    await bank.paid(2, "langgraph: calls of a message wait one after the other, in a graph within a graph")


async def langgraph_denied(fleet: AsyncFleet) -> None:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    bank, config = Bank(), thread()
    graph = graph_of(fleet, bank, InMemorySaver(), tool="transfer")
    state = await graph.ainvoke(go(), config)
    assert "console" not in state["__interrupt__"][0].value
    await decide(state["__interrupt__"][0].value["approval"], "deny")
    state = await graph.ainvoke(Command(resume=True), config)
    (message,) = [message for message in state["messages"] if message.type == "tool"]
    assert message.status == "error" and "ann" in message.content, message
    await bank.paid(0, "langgraph: a denial resumes the run")


async def langgraph_waits(fleet: AsyncFleet) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    for saver, what in ((None, "without a checkpointer"), (InMemorySaver(), "with interrupt=False")):
        bank = Bank()
        graph = graph_of(fleet, bank, saver, tool="transfer", interrupt=False if saver else None)
        running = asyncio.create_task(graph.ainvoke(go(), thread()))
        await waiting(1)
        assert not running.done()
        await decide_all()
        state = await running
        assert state["messages"][-1].content == "done"
        await bank.paid(1, f"langgraph: the node waits for the approval, {what}")


async def waiting(calls: int) -> None:
    """Waits until `calls` calls wait for an approval."""
    deadline = time.monotonic() + 20
    while len(json.loads(await tickfleet("approvals", "list", "--json"))["items"]) < calls:
        assert time.monotonic() < deadline


async def langgraph_processes_approved(fleet: AsyncFleet) -> None:
    import pickle

    from langgraph.checkpoint.memory import InMemorySaver

    bank, config, saver = Bank(), thread(), InMemorySaver()
    state = await graph_of(fleet, bank, saver, tool="transfer").ainvoke(go(), config)
    await decide(state["__interrupt__"][0].value["approval"])
    stored = bank.ledger.with_name("checkpoints")
    threads = {id: dict(spaces) for id, spaces in saver.storage.items()}
    stored.write_bytes(pickle.dumps((threads, dict(saver.writes), dict(saver.blobs))))
    program = os.path.join(os.path.dirname(__file__), "resumed.py")
    resumed = ["resume", str(stored), config["configurable"]["thread_id"], str(bank.ledger), "transfer"]
    both = [await asyncio.create_subprocess_exec(sys.executable, "-B", program, *resumed) for _ in range(2)]
    assert [await process.wait() for process in both] == [0, 0]
    await bank.paid(1, "langgraph: two processes resume a thread after its approval")


async def langchain_interrupted(fleet: AsyncFleet) -> None:
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command
    from resumed import chat_model
    from tickfleet.adapters.langgraph import fleet_tools

    bank, config, saver = Bank(), thread(), InMemorySaver()
    tools = await fleet_tools(fleet, "kelly", console_url="https://fleet.example.com", **bank.fields())
    asked = (("bob", "transfer"), ("amy", "pay"))
    both = [{"id": f"call_{to}", "name": tool, "args": {"to": to, "amount": 10}} for to, tool in asked]
    model = chat_model(AIMessage("", tool_calls=both), AIMessage("done"))
    agent = create_agent(model, tools, checkpointer=saver)
    state = await agent.ainvoke(go(), config)
    (first,) = state["__interrupt__"]
    judge(first.value)
    await bank.has_paid(1)
    state = await agent.ainvoke(Command(resume="not yet"), config)
    assert state["__interrupt__"][0].value == first.value
    await decide(first.value["approval"])
    before = agent.get_state(config).config
    for _ in range(2):
        model.reset()
        state = await agent.ainvoke(Command(resume=True), before)
        reported = sorted(message.content for message in state["messages"] if message.type == "tool")
        assert reported == ["paid 10 to amy", PAID], reported
    await bank.paid(2, "langchain: one call of a response waits for an approval, the other runs")


async def openai_agents_interrupted(fleet: AsyncFleet) -> None:
    from agents import Agent, RunState, Runner, set_tracing_disabled
    from tickfleet.adapters.openai_agents import fleet_tools

    set_tracing_disabled(True)

    def order(run: Any) -> str:
        return str(run.context["order"])

    async def agent_of(client: AsyncFleet, bank: Bank, **more: Any) -> Any:
        tools = await fleet_tools(client, "kelly", run_id=order, **bank.fields(), **{"interrupt": True, **more})
        return Agent(name="kelly", model=agents_model("fc_1", tool="transfer"), tools=tools)

    async def resumed(agent: Any, saved: str) -> Any:
        state = await RunState.from_string(agent, saved)
        for item in state.get_interruptions():
            state.approve(item)
        return await Runner.run(agent, state)

    async def interrupted(client: AsyncFleet, what: str) -> None:
        bank, context = Bank(), {"order": uuid.uuid4().hex}
        agent = await agent_of(client, bank, console_url="https://fleet.example.com")
        result = await Runner.run(agent, "Pay bob.", context=context)
        (item,) = result.interruptions
        (notice,) = agent.tools.approvals(result)
        judge(notice)
        assert notice["call_id"] == item.call_id, notice
        assert (item.tool_name, json.loads(item.arguments)) == ("transfer", {"to": "bob", "amount": 10}), item
        saved = result.to_state().to_string()
        impatient = await agent_of(client, bank, timeout=1.0)
        try:
            await resumed(impatient, saved)
        except Exception as error:
            assert isinstance(error.__cause__ or error, ReplyTimeout), repr(error)
        else:
            raise AssertionError("expected no result before the decision")
        assert bank.payments() == []
        await decide(notice["approval"])
        await bank.has_paid(1)
        for result in [*await asyncio.gather(*[resumed(agent, saved) for _ in range(2)]), await resumed(agent, saved)]:
            assert agent.tools.approvals(result) == []
            assert result.final_output == "done"
            assert result.new_items[-2].output == PAID or PAID in str(result.to_input_list()), result.new_items
        await bank.paid(1, f"openai_agents: an approval interrupts the run, {what}")

    await interrupted(fleet, "over Redis")
    async with through_gateway() as gateway:
        await interrupted(gateway, "through a gateway")

    bank = Bank()
    waiter = await agent_of(fleet, bank, interrupt=False)
    running = asyncio.create_task(Runner.run(waiter, "Pay bob.", context={"order": uuid.uuid4().hex}))
    await waiting(1)
    await decide_all("deny")
    result = await running
    assert "ann" in str(result.to_input_list()), result
    await bank.paid(0, "openai_agents: without interrupt the tool waits, and the model reads the denial")

    from agents import ToolGuardrailFunctionOutput, ToolInputGuardrail

    bank = Bank()
    agent = await agent_of(fleet, bank)
    agent.model = agents_model("fc_1", tool="pay")
    for tool in agent.tools:
        reject = ToolGuardrailFunctionOutput.reject_content("not to bob")
        tool.tool_input_guardrails = [ToolInputGuardrail(guardrail_function=lambda data: reject, name="no")]
    await Runner.run(agent, "Pay bob.", context={"order": uuid.uuid4().hex})
    await bank.paid(0, "openai_agents: a guardrail of the SDK decides before the call runs")


async def pydantic_ai_deferred(fleet: AsyncFleet) -> None:
    from pydantic import TypeAdapter
    from pydantic_ai import Agent, DeferredToolRequests
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel
    from tickfleet.adapters.pydantic_ai import FleetToolset

    def model(messages: list[Any], info: Any) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        if any(isinstance(part, ToolReturnPart) for part in parts):
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("transfer", json.dumps({"to": "bob", "amount": 10}), "call_1")])

    def agent_of(client: AsyncFleet, bank: Bank, output: Any, **more: Any) -> tuple[Any, FleetToolset]:
        console = "https://fleet.example.com"
        toolset = FleetToolset(client, "kelly", console_url=console, **bank.fields(), **more)
        return Agent(FunctionModel(model), toolsets=[toolset], output_type=output), toolset

    def returned(result: Any) -> Any:
        parts = [part for message in result.all_messages() for part in message.parts]
        (part,) = [part for part in parts if isinstance(part, ToolReturnPart)]
        return part

    stored = TypeAdapter(DeferredToolRequests)

    async def deferred(client: AsyncFleet, what: str) -> None:
        bank = Bank()
        agent, toolset = agent_of(client, bank, [str, DeferredToolRequests])
        first = await agent.run("Pay bob.")
        assert isinstance(first.output, DeferredToolRequests), first.output
        judge(first.output.metadata["call_1"])
        saved = first.all_messages_json(), stored.dump_json(first.output)
        try:
            await toolset.results(first.output, timeout=0.5)
        except ReplyTimeout:
            pass
        else:
            raise AssertionError("expected no result before the decision")
        await decide(first.output.metadata["call_1"]["approval"])
        await bank.has_paid(1)
        for _ in range(2):
            results = await toolset.results(stored.validate_json(saved[1]))
            history = ModelMessagesTypeAdapter.validate_json(saved[0])
            result = await agent.run(message_history=history, deferred_tool_results=results)
            assert (result.output, returned(result).content) == ("done", PAID)
        await bank.paid(1, f"pydantic_ai: an approval defers the call, {what}")

    await deferred(fleet, "over Redis")
    async with through_gateway() as gateway:
        await deferred(gateway, "through a gateway")

    bank = Bank()
    agent, toolset = agent_of(fleet, bank, [str, DeferredToolRequests])
    first = await agent.run("Pay bob.")
    await decide(first.output.metadata["call_1"]["approval"], "deny")
    results = await toolset.results(first.output)
    result = await agent.run(message_history=first.all_messages(), deferred_tool_results=results)
    assert returned(result).outcome == "failed" and "ann" in returned(result).content
    await bank.paid(0, "pydantic_ai: a denied call has failed")

    bank = Bank()
    agent, _ = agent_of(fleet, bank, str)
    running = asyncio.create_task(agent.run("Pay bob."))
    await waiting(1)
    await decide_all()
    assert (await running).output == "done"
    await bank.paid(1, "pydantic_ai: an agent that accepts no deferred calls waits")


CASES: list[Callable[[AsyncFleet], Any]] = [
    client_reports,
    langgraph_interrupted,
    langgraph_nested,
    langgraph_denied,
    langgraph_waits,
    langgraph_processes_approved,
    langchain_interrupted,
    openai_agents_interrupted,
    pydantic_ai_deferred,
]


if __name__ == "__main__":
    asyncio.run(play(CASES, sys.argv[1:]))
