"""Tools of a fleet for LangGraph and LangChain.

:func:`fleet_tools` returns tools for an agent of LangChain, or for ``ToolNode``. Each call is a turn::

    agent = create_agent(model, await fleet_tools(fleet, "kelly"))

:func:`fleet_node` replaces ``ToolNode`` in a graph. All calls of a message are one turn: they run in order, except
consecutive reads, and their results arrive together::

    model = model.bind_tools(await fleet_tools(fleet, "kelly"))
    graph.add_node("tools", fleet_node(fleet, "kelly"))

Both work with an :class:`tickfleet.AsyncFleet` in ``ainvoke`` and ``astream``, and with a :class:`tickfleet.Fleet` also
in ``invoke`` and ``stream``.

The turn's id is derived from the thread, the checkpoint namespace, the message id and, in :func:`fleet_tools`, the call
id. If a thread is resumed, retried or replayed, in this process or another one, it receives the first results. The
message id comes from the model or from ``add_messages`` and is in the checkpoint. Without a thread or message ids, the
id of the node's execution is used. It stays the same if the node is retried or resumed from the same checkpoint.

If a call waits for an approval and the graph has a checkpointer, the node interrupts the graph. The value of the
interrupt describes the approval. After the decision, resume the thread with any value, such as
``Command(resume=True)``: the node asks the fleet for the result. If the call still waits, it interrupts again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, cast, overload

from pydantic import PrivateAttr
from typing_extensions import Unpack

from tickfleet.adapters._calls import (
    Caller,
    CallOptions,
    Definition,
    arguments_text,
    call_of,
    message,
    message_text,
    missing,
)
from tickfleet.client import AsyncFleet, Fleet, InvalidMessage, Reply

try:
    from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool, ToolException
    from langgraph.constants import CONFIG_KEY_CHECKPOINTER
    from langgraph.prebuilt import ToolRuntime
    from langgraph.runtime import Runtime
    from langgraph.types import interrupt as interrupt_graph
except ImportError as error:
    raise missing("langgraph", error) from error

Context: TypeAlias = ToolRuntime[Any, Any]
"""The context of a run: ``context``, ``state``, ``config``, ``store``."""

# Outside of a graph, the configuration is empty.
_OUTSIDE: RunnableConfig = {}

# LangChain recognizes the annotation of the parameter, so the annotation cannot also permit None.
_ABSENT: Any = None

#: A text, or LangChain's content blocks with a text or an image.
Content: TypeAlias = str | list[str | dict[str, Any]]
Update: TypeAlias = dict[str, list[ToolMessage]] | list[ToolMessage]


@overload
def fleet_node(
    fleet: AsyncFleet,
    agent: str,
    *,
    messages_key: str = "messages",
    interrupt: bool | None = None,
    parallel_reads: bool = True,
    **options: Unpack[CallOptions[Context]],
) -> Callable[..., Coroutine[Any, Any, Update]]: ...


@overload
def fleet_node(
    fleet: Fleet,
    agent: str,
    *,
    messages_key: str = "messages",
    interrupt: bool | None = None,
    parallel_reads: bool = True,
    **options: Unpack[CallOptions[Context]],
) -> Callable[..., Update]: ...


def fleet_node(
    fleet: AsyncFleet | Fleet,
    agent: str,
    *,
    messages_key: str = "messages",
    interrupt: bool | None = None,
    parallel_reads: bool = True,
    **options: Unpack[CallOptions[Context]],
) -> Callable[..., Coroutine[Any, Any, Update] | Update]:
    """Returns a node that runs the calls of the last message in the fleet and adds a message for each.

    The state is a mapping, a Pydantic model, a dataclass, or a list of messages.

    Args:
        fleet: Client of the fleet. With a blocking client, the node also works in ``invoke`` and ``stream``.
        agent: Agent that makes the calls.
        messages_key: Key or field of the state that holds the messages.
        interrupt: Whether a call that waits for an approval interrupts the graph. Default: if the graph has a
            checkpointer, with Python 3.11 or later. Without an interrupt, the node waits for the decision.
        parallel_reads: Whether consecutive calls of read-only tools can run in parallel.
        **options: Further options: ``CallOptions``.

    Raises:
        InvalidMessage: An option is one that the adapter sets, or is unknown; or, from the node, it does not run in a
            graph.
    """
    caller: Caller[Context] = Caller("langgraph", fleet, agent, {**options, "parallel_reads": parallel_reads})

    # LangGraph passes `runtime` and `config` by their names and annotations.
    async def tools(state: Any, config: RunnableConfig = _OUTSIDE, runtime: Runtime[Any] | None = None) -> Update:
        work = _Work(caller, state, config, runtime, messages_key, interrupt)
        reply = await caller.ask(work.context, work.calls, work.id, work.interrupts) if work.calls else None
        return work.update(reply)

    def blocking_tools(state: Any, config: RunnableConfig = _OUTSIDE, runtime: Runtime[Any] | None = None) -> Update:
        work = _Work(caller, state, config, runtime, messages_key, interrupt)
        reply = caller.ask_blocking(work.context, work.calls, work.id, work.interrupts) if work.calls else None
        return work.update(reply)

    return blocking_tools if isinstance(fleet, Fleet) else tools


class _Work:
    """The calls of the last message of a state, as one turn."""

    def __init__(
        self,
        caller: Caller[Context],
        state: Any,
        config: RunnableConfig,
        runtime: Runtime[Any] | None,
        messages_key: str,
        interrupt: bool | None,
    ) -> None:
        if runtime is None:
            raise _outside()
        self.context = ToolRuntime(
            state=state,
            context=runtime.context,
            config=config,
            stream_writer=runtime.stream_writer,
            tool_call_id=None,
            store=runtime.store,
            execution_info=runtime.execution_info,
            server_info=runtime.server_info,
        )
        self.interrupts = _may_interrupt(config) if interrupt is None else interrupt
        self._key = None if isinstance(state, list) else messages_key
        messages = _messages(state, messages_key)
        last = messages[-1] if messages else None
        self._calls: list[tuple[str | None, str, str]] = []
        self.id = ""
        if isinstance(last, AIMessage):
            self._calls = [(call["id"], call["name"], arguments_text(call["args"])) for call in last.tool_calls]
            # Submit invalid calls too: the fleet's error message tells the model how to correct them.
            self._calls += [
                (call["id"], call["name"] or "", call["args"] or "") for call in last.invalid_tool_calls
            ]
        self.calls = [call_of(name, arguments, id) for id, name, arguments in self._calls]
        if isinstance(last, AIMessage) and self.calls:
            self.id = caller.turn_id(_place(self.context, last, len(messages)))

    def update(self, reply: Reply | dict[str, Any] | None) -> Update:
        """Returns the update of the state."""
        if isinstance(reply, dict):
            _interrupt(reply)
        messages = [] if reply is None else [
            ToolMessage(
                content=_content(reply, at),
                tool_call_id=id or "",
                name=name,
                status="success" if reply.results[at].success else "error",
            )
            for at, (id, name, _) in enumerate(self._calls)
        ]
        return messages if self._key is None else {self._key: messages}


@overload
def fleet_tools(
    fleet: AsyncFleet,
    agent: str,
    *,
    messages_key: str = "messages",
    interrupt: bool | None = None,
    **options: Unpack[CallOptions[Context]],
) -> Coroutine[Any, Any, list[BaseTool]]: ...


@overload
def fleet_tools(
    fleet: Fleet,
    agent: str,
    *,
    messages_key: str = "messages",
    interrupt: bool | None = None,
    **options: Unpack[CallOptions[Context]],
) -> list[BaseTool]: ...


def fleet_tools(
    fleet: AsyncFleet | Fleet,
    agent: str,
    *,
    messages_key: str = "messages",
    interrupt: bool | None = None,
    **options: Unpack[CallOptions[Context]],
) -> Coroutine[Any, Any, list[BaseTool]] | list[BaseTool]:
    """Returns the agent's tools for ``create_agent`` of LangChain, ``ToolNode``, or ``bind_tools`` of a model.

    With a blocking client, the tools also work in ``invoke`` and ``stream``. Await the result only with an
    :class:`tickfleet.AsyncFleet`. The arguments are those of :func:`fleet_node`.

    Raises:
        NoDefinitions: No worker has published a tool list.
        InvalidMessage: An option is one that the adapter sets, or is unknown; or, from a call, it does not run in a
            graph.
    """
    caller: Caller[Context] = Caller("langgraph", fleet, agent, options)

    def made(definitions: list[Definition]) -> list[BaseTool]:
        return [_FleetTool.of(definition, caller, messages_key, interrupt) for definition in definitions]

    async def fetched() -> list[BaseTool]:
        return made(await caller.definitions())

    return made(caller.definitions_blocking()) if isinstance(fleet, Fleet) else fetched()


class _FleetTool(BaseTool):
    """A tool that runs in the fleet. Each call is a turn."""

    # LangChain converts the error of a failed call to a message with the status `error`.
    handle_tool_error: Any = True

    _caller: Caller[Context] = PrivateAttr()
    _messages_key: str = PrivateAttr()
    _interrupt: bool | None = PrivateAttr()

    @classmethod
    def of(
        cls, definition: Definition, caller: Caller[Context], messages_key: str, interrupt: bool | None
    ) -> _FleetTool:
        tool = cls(name=definition.name, description=definition.description, args_schema=definition.parameters)
        tool._caller, tool._messages_key, tool._interrupt = caller, messages_key, interrupt
        return tool

    @property
    def func(self) -> Callable[..., Content]:
        """ToolNode finds the parameter for its runtime in the annotations of this function."""
        return self._run

    # The parameter has a name that no tool argument has.
    def _run(self, tickfleet_runtime: ToolRuntime[Any, Any] = _ABSENT, **arguments: Any) -> Content:
        if isinstance(self._caller.fleet, AsyncFleet):
            raise InvalidMessage(
                f"{self.name} has an AsyncFleet, which needs ainvoke or astream; with invoke, use a Fleet"
            )
        if tickfleet_runtime is _ABSENT:
            raise _outside()
        calls, id, interrupts = self._turn(tickfleet_runtime, arguments)
        return self._result(self._caller.ask_blocking(tickfleet_runtime, calls, id, interrupts))

    async def _arun(self, tickfleet_runtime: ToolRuntime[Any, Any] = _ABSENT, **arguments: Any) -> Content:
        if tickfleet_runtime is _ABSENT:
            raise _outside()
        calls, id, interrupts = self._turn(tickfleet_runtime, arguments)
        return self._result(await self._caller.ask(tickfleet_runtime, calls, id, interrupts))

    def _turn(self, runtime: Context, arguments: dict[str, Any]) -> tuple[list[dict[str, Any]], str, bool]:
        text = arguments_text(arguments)
        calls = [call_of(self.name, text, runtime.tool_call_id)]
        interrupts = _may_interrupt(runtime.config) if self._interrupt is None else self._interrupt
        messages = _messages(runtime.state, self._messages_key)
        made_by = [
            (at, message, equal)
            for at, message in enumerate(messages)
            if isinstance(message, AIMessage)
            and (equal := [call for call in message.tool_calls if call["id"] == runtime.tool_call_id])
        ]
        if not made_by or not runtime.tool_call_id:
            raise InvalidMessage(
                f"the call {runtime.tool_call_id!r} of {self.name} is in no message of the state, so it cannot be "
                f"distinguished from an equal call: keep the messages under {self._messages_key!r}, or pass "
                "messages_key=…"
            )
        at, message, equal = made_by[-1]
        parts: list[Any] = [_place(runtime, message, at + 1), runtime.tool_call_id]
        if len(equal) > 1:
            # Several calls of the message have the same id, so names and arguments distinguish them. Equal calls count
            # as one call.
            parts += [self.name, text]
        return calls, self._caller.turn_id(*parts), interrupts

    def _result(self, found: Reply | dict[str, Any]) -> Content:
        if isinstance(found, dict):
            _interrupt(found)
        if not found.results[0].success:
            raise ToolException(message_text(found))
        return _content(found)


def _content(reply: Reply, at: int = 0) -> Content:
    """Returns the content of a tool message."""
    found = message(reply, at)
    if isinstance(found, str):
        return found
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "base64": part.data, "mime_type": part.media_type}
        for part in found
    ]


def _messages(state: Any, key: str) -> Sequence[AnyMessage]:
    """Returns the messages of a state."""
    if isinstance(state, list):
        return state
    if isinstance(state, Mapping):
        return cast(Sequence[AnyMessage], state.get(key, []))
    return cast(Sequence[AnyMessage], getattr(state, key, []))


def _may_interrupt(config: RunnableConfig) -> bool:
    """Returns whether an interrupted graph can be resumed, that is, whether it has a checkpointer."""
    # With Python 3.10, asynchronous nodes cannot interrupt. A thread is not enough: a graph without a checkpointer can
    # also have a thread.
    return sys.version_info >= (3, 11) and config.get("configurable", {}).get(CONFIG_KEY_CHECKPOINTER) is not None


def _interrupt(value: dict[str, Any]) -> NoReturn:
    """Interrupts the graph.

    When a node is resumed, LangGraph returns the values of earlier resumes from the first calls. They do not matter
    here: the fleet was asked after the resume, and the call still waits.
    """
    while True:
        interrupt_graph(value)


def _outside() -> InvalidMessage:
    return InvalidMessage(
        "the calls cannot be distinguished from equal calls of another run: add fleet_node, or a ToolNode with the "
        "tools, to a graph, which has a thread and an execution"
    )


def _place(runtime: Context, message: AIMessage, length: int) -> list[str | int | None]:
    """Returns values that identify the message among those of all threads and runs."""
    info = runtime.execution_info
    if info is None:
        raise _outside()
    # The path of the parent graphs and their executions, without the execution of this node.
    parents = info.checkpoint_ns.rpartition("|")[0]
    if info.thread_id is not None and message.id:
        return ["message", str(info.thread_id), parents, message.id]
    return ["execution", info.thread_id and str(info.thread_id), info.checkpoint_ns, info.task_id, message.id, length]
