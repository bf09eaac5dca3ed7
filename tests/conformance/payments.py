"""Agents pay once, whatever happens to their runs: `payments.py`, against `REDIS_URL`, with a running fleet that has the
configuration in `bank/conf`. Each case runs with each kind of loop. The models are stubs that ask for one payment.
Payments are counted in the bank's ledger, not in the results that the agents received.

`payments.py resume JOBS` is another process. JOBS is a file with the saved states that it resumes.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import sys
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from agents import Agent, Runner, RunState, set_tracing_disabled
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import AIMessage
from langgraph import prebuilt
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import RetryPolicy
from openai.types.chat import ChatCompletion
from pydantic_ai import DeferredToolResults
from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolCallPart, ToolReturnPart
from resumed import BOB, Bank, agents_model, chat_model, fleet, go, is_conflict, pydantic_agent
from tickfleet import AsyncFleet
from tickfleet.adapters import langgraph, openai_agents
from tickfleet.client import ReplyTimeout

RESULT = "paid 10 to bob"


class Loop(ABC):
    """An agent whose state is saved after its model has asked for a payment, and before the payment is made."""

    name: str
    is_editable = True
    """Whether the framework resumes a saved state whose calls were edited."""

    def __init__(self, fleet: AsyncFleet, bank: Bank) -> None:
        self.fleet = fleet
        self.bank = bank

    @abstractmethod
    async def saved(self) -> bytes:
        """Starts a run, and returns its state."""

    @abstractmethod
    async def resume(self, saved: bytes, timeout: float = 30.0) -> str:
        """Resumes a run. Returns the result of the payment that the agent received."""

    @abstractmethod
    async def edited(self, saved: bytes, call: str | None = None) -> bytes:
        """Returns the saved state with another amount for the payment. If `call` is set, it replaces the ID of the
        call."""

    async def retry(self, saved: bytes) -> str:
        """Resumes a run repeatedly until it ends, each time with a timeout that is shorter than the payment."""
        for _ in range(10):
            try:
                return await self.resume(saved, 0.5)
            except Exception as error:
                # The OpenAI Agents SDK wraps the exception of a tool.
                if not isinstance(error.__cause__ or error, ReplyTimeout):
                    raise
        raise AssertionError("expected a result")


class Graph(Loop):
    """A graph of LangGraph, saved by its checkpointer."""

    retries = False

    @abstractmethod
    async def graph(self, saver: Any, timeout: float) -> Any: ...

    def message(self) -> Any:
        return AIMessage("", id=uuid.uuid4().hex, tool_calls=[{"id": "call_1", "name": "pay", "args": BOB}])

    async def _loaded(self, saved: bytes, timeout: float = 30.0) -> tuple[Any, Any, dict[str, Any]]:
        saver = InMemorySaver()
        thread, threads, writes, blobs = pickle.loads(saved)
        for id, spaces in threads.items():
            saver.storage[id].update(spaces)
        saver.writes.update(writes)
        saver.blobs.update(blobs)
        return saver, await self.graph(saver, timeout), {"configurable": {"thread_id": thread}}

    def _stored(self, saver: Any, config: dict[str, Any]) -> bytes:
        threads = {id: dict(spaces) for id, spaces in saver.storage.items()}
        return pickle.dumps((config["configurable"]["thread_id"], threads, dict(saver.writes), dict(saver.blobs)))

    async def saved(self) -> bytes:
        saver, graph, config = await self._loaded(pickle.dumps((uuid.uuid4().hex, {}, {}, {})))
        await graph.ainvoke(go(), config, interrupt_before=["tools"])
        return self._stored(saver, config)

    async def resume(self, saved: bytes, timeout: float = 30.0) -> str:
        _, graph, config = await self._loaded(saved, timeout)
        state = await graph.ainvoke(None, config)
        (result,) = [str(message.content) for message in state["messages"] if message.type == "tool"]
        return result

    async def edited(self, saved: bytes, call: str | None = None) -> bytes:
        saver, graph, config = await self._loaded(saved)
        last = (await graph.aget_state(config)).values["messages"][-1]
        change = {"args": {**BOB, "amount": 9}}
        message = last.model_copy(
            update={"id": call or last.id, "tool_calls": [{**last.tool_calls[0], **change}]}
        )
        await graph.aupdate_state(config, {"messages": [message]}, as_node="model")
        return self._stored(saver, config)

    async def retry(self, saved: bytes) -> str:
        self.retries = True
        return await self.resume(saved, 0.5)


class FleetNode(Graph):
    name = "langgraph, fleet_node"

    async def node(self, timeout: float) -> Any:
        return langgraph.fleet_node(self.fleet, "kelly", timeout=timeout, **self.bank.fields())

    async def graph(self, saver: Any, timeout: float) -> Any:
        policy = RetryPolicy(max_attempts=10, initial_interval=0.05, backoff_factor=1.0, retry_on=ReplyTimeout)
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [self.message()]})
        graph.add_node("tools", await self.node(timeout), retry_policy=policy if self.retries else None)
        graph.add_edge(START, "model")
        graph.add_edge("model", "tools")
        graph.add_edge("tools", END)
        return graph.compile(checkpointer=saver)


class ToolNode(FleetNode):
    name = "langgraph, ToolNode"

    async def node(self, timeout: float) -> Any:
        return prebuilt.ToolNode(await langgraph.fleet_tools(self.fleet, "kelly", timeout=timeout, **self.bank.fields()))


class CreateAgent(Graph):
    name = "langchain, create_agent"

    async def graph(self, saver: Any, timeout: float) -> Any:
        model = chat_model(self.message(), AIMessage("done"))
        if saver.storage:
            model.reset()
        tools = await langgraph.fleet_tools(self.fleet, "kelly", timeout=timeout, **self.bank.fields())
        retry = ToolRetryMiddleware(max_retries=10, initial_delay=0.05, backoff_factor=1.0, retry_on=(ReplyTimeout,))
        return create_agent(model, tools, checkpointer=saver, middleware=[retry] if self.retries else [])


class OpenAIAgents(Loop):
    name = "openai_agents"
    is_editable = False
    run_id: Any = None

    def item(self) -> str | None:
        return f"fc_{uuid.uuid4().hex}"

    async def agent(self, timeout: float) -> Any:
        set_tracing_disabled(True)
        fields = self.bank.fields()
        tools = await openai_agents.fleet_tools(self.fleet, "kelly", run_id=self.run_id, timeout=timeout, interrupt=False, **fields)
        for tool in tools:
            tool.needs_approval = True  # type: ignore[union-attr]
        return Agent(name="kelly", model=agents_model(self.item()), tools=tools)

    async def saved(self) -> bytes:
        result = await Runner.run(await self.agent(30.0), "Pay bob.", context={"order": uuid.uuid4().hex})
        return result.to_state().to_string().encode()

    async def resume(self, saved: bytes, timeout: float = 30.0) -> str:
        agent = await self.agent(timeout)
        state = await RunState.from_string(agent, saved.decode())
        for waiting in state.get_interruptions():
            state.approve(waiting)
        result = await Runner.run(agent, state)
        (output,) = [item["output"] for item in result.to_input_list() if item.get("type") == "function_call_output"]
        return str(output)

    async def edited(self, saved: bytes, call: str | None = None) -> bytes:
        text = saved.decode().replace('\\"amount\\": 10', '\\"amount\\": 9')
        return (text if call is None else text.replace("call_1", call)).encode()


class OpenAIAgentsChat(OpenAIAgents):
    name = "openai_agents, run_id"

    @staticmethod
    def run_id(run: Any) -> str:
        return str(run.context["order"])

    def item(self) -> str | None:
        return None


class PydanticAI(Loop):
    name = "pydantic_ai"

    async def saved(self) -> bytes:
        return bytes((await pydantic_agent(self.fleet, self.bank).run("Pay bob.")).all_messages_json())

    async def resume(self, saved: bytes, timeout: float = 30.0) -> str:
        history = ModelMessagesTypeAdapter.validate_json(saved)
        calls = [part.tool_call_id for part in history[-1].parts if isinstance(part, ToolCallPart)]
        yes = DeferredToolResults(approvals={id: True for id in calls})
        agent = pydantic_agent(self.fleet, self.bank, timeout=timeout)
        result = await agent.run(message_history=history, deferred_tool_results=yes)
        parts = [part for message in result.all_messages() for part in message.parts]
        (content,) = [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]
        return content

    async def edited(self, saved: bytes, call: str | None = None) -> bytes:
        text = saved.replace(b'\\"amount\\": 10', b'\\"amount\\": 9')
        return text if call is None else text.replace(b"call_1", call.encode())


class OpenAIChat(Loop):
    name = "own loop, OpenAI"

    async def saved(self) -> bytes:
        call = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": json.dumps(BOB)}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
        response = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": 1, "model": "gpt"}
        return json.dumps({**response, "choices": [choice]}).encode()

    async def resume(self, saved: bytes, timeout: float = 30.0) -> str:
        response = ChatCompletion.model_validate_json(saved)
        choice = response.choices[0]
        reply = await self.fleet.run(
            "kelly",
            tool_calls=choice.message.tool_calls,
            stop_reason=choice.finish_reason,
            turn_id=response.id,
            timeout=timeout,
            **self.bank.fields(),
        )
        return str(reply.messages[0]["content"])

    async def edited(self, saved: bytes, call: str | None = None) -> bytes:
        response = json.loads(saved)
        response["id"] = call or response["id"]
        function = response["choices"][0]["message"]["tool_calls"][0]["function"]
        function["arguments"] = json.dumps({**BOB, "amount": 9})
        return json.dumps(response).encode()


class Anthropic(Loop):
    name = "own loop, Anthropic"

    async def saved(self) -> bytes:
        content = [{"type": "text", "text": "I pay."}, {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": BOB}]
        message = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "content": content}
        return json.dumps({**message, "stop_reason": "tool_use"}).encode()

    async def resume(self, saved: bytes, timeout: float = 30.0) -> str:
        message = json.loads(saved)
        reply = await self.fleet.run(
            "kelly",
            content=message["content"],
            stop_reason=message["stop_reason"],
            turn_id=message["id"],
            timeout=timeout,
            **self.bank.fields(),
        )
        (block,) = reply.messages[0]["content"]
        return str(block["content"])

    async def edited(self, saved: bytes, call: str | None = None) -> bytes:
        message = json.loads(saved)
        message["id"] = call or message["id"]
        message["content"][1]["input"]["amount"] = 9
        return json.dumps(message).encode()


LOOPS: list[type[Loop]] = [
    FleetNode,
    ToolNode,
    CreateAgent,
    OpenAIAgents,
    OpenAIAgentsChat,
    PydanticAI,
    OpenAIChat,
    Anthropic,
]


async def cancelled(loop: Loop) -> None:
    """Cancels the run after the money has moved and before the result arrives. A resumed run must not pay again."""
    # The payment must last longer than the first import of a framework. On a busy machine, this import blocks the
    # process for seconds.
    loop.bank.seconds = 12.0
    saved = await loop.saved()
    running = asyncio.create_task(loop.resume(saved))
    await loop.bank.has_paid(1)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert await loop.resume(saved) == RESULT
    await loop.bank.paid(1, f"{loop.name}: a canceled run is resumed")


async def retried(loop: Loop) -> None:
    loop.bank.seconds = 1.2
    assert await loop.retry(await loop.saved()) == RESULT
    await loop.bank.paid(1, f"{loop.name}: a call that takes longer than its timeout is retried")


async def replayed(loop: Loop) -> None:
    saved = await loop.saved()
    for _ in range(2):
        assert await loop.resume(saved) == RESULT
    await loop.bank.paid(1, f"{loop.name}: a saved state is resumed again after its end")
    saved = await loop.saved()
    assert await asyncio.gather(loop.resume(saved), loop.resume(saved)) == [RESULT, RESULT]
    await loop.bank.paid(2, f"{loop.name}: a saved state is resumed twice at once")


async def edited(loop: Loop) -> None:
    """Edits calls and resumes the run. If the original call was not made, the edited call runs. If the original call
    was made, the edited call is refused, unless it has another ID."""
    before = 1 if loop.is_editable else 0
    saved = await loop.saved()
    if loop.is_editable:
        assert await loop.resume(await loop.edited(saved)) == "paid 9 to bob"
        await refused(loop, saved)
    else:
        await refused(loop, await loop.edited(saved))
    saved = await loop.saved()
    assert await loop.resume(saved) == RESULT
    await refused(loop, await loop.edited(saved))
    await loop.bank.paid(before + 1, f"{loop.name}: an edit of a call that has paid is refused")
    if not loop.is_editable:
        return
    assert await loop.resume(await loop.edited(saved, f"call_{uuid.uuid4().hex}")) == "paid 9 to bob"
    await loop.bank.paid(3, f"{loop.name}: an edited call with another id is another call")


async def refused(loop: Loop, saved: bytes) -> None:
    try:
        result = await loop.resume(saved)
    except Exception as error:
        assert is_conflict(error), repr(error)
    else:
        raise AssertionError(f"expected a conflict, found {result!r}")


async def processes(loops: list[Loop]) -> None:
    """Kills one process that pays with each kind of loop. Then two processes resume its saved states at the same
    time."""
    jobs = Bank().ledger
    for loop in loops:
        loop.bank.seconds = 1.5
    saved = [(LOOPS.index(type(loop)), str(loop.bank.ledger), await loop.saved()) for loop in loops]
    jobs.write_bytes(pickle.dumps(saved))

    async def other() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-B", __file__, "resume", str(jobs))

    killed = await other()
    await asyncio.gather(*(loop.bank.has_paid(1) for loop in loops))
    killed.kill()
    assert await killed.wait() == -signal.SIGKILL
    both = [await other() for _ in range(2)]
    assert [await process.wait() for process in both] == [0, 0]
    what = "two processes resume a run whose process was killed"
    await asyncio.gather(*(loop.bank.paid(1, f"{loop.name}: {what}") for loop in loops))


async def resume(jobs: str) -> None:
    async with fleet() as own:
        found = pickle.loads(Path(jobs).read_bytes())
        loops = [LOOPS[at](own, Bank(ledger, seconds=1.5)) for at, ledger, _ in found]
        results = await asyncio.gather(*(loop.resume(saved) for loop, (_, _, saved) in zip(loops, found)))
    assert set(results) == {RESULT}, results


async def main() -> None:
    failed: list[str] = []
    async with fleet() as own:
        for case in (cancelled, retried, replayed, edited):
            work = [case(kind(own, Bank())) for kind in LOOPS]
            for kind, error in zip(LOOPS, await asyncio.gather(*work, return_exceptions=True)):
                if error is not None:
                    failed.append(f"{kind.name}: {case.__name__}: {type(error).__name__}: {error}")
        await processes([kind(own, Bank()) for kind in LOOPS])
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    asyncio.run(resume(sys.argv[2]) if sys.argv[1:2] == ["resume"] else main())
