"""Tests of the client's decisions without Redis. The tests with a fleet are in tests/conformance."""

import asyncio
import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tickfleet import DuplicateTool, ToolError
from tickfleet.client import (
    AsyncFleet,
    CallFailed,
    CallRefused,
    Conflict,
    Fleet,
    FleetError,
    InvalidMessage,
    OutcomeUnknown,
    Rejected,
    ReplyTimeout,
    Result,
    Throttled,
    Unavailable,
    WrongLoop,
    shard_of,
)
from tickfleet.client._definitions import DIALECTS, defined
from tickfleet.client._inbox import COUNT, Entry, Inbox, entry_of
from tickfleet.client._message import asked, plain, task_message, turn_message, written
from tickfleet.client._redis import ENQUEUE, Redis, connect
from tickfleet.client._reply import read_record, read_reply
from tickfleet.client._transport import DEFAULT_URL


# URLs without a server. A gateway needs Python 3.11 or later, so older versions use only Redis.
NOWHERE = ["redis://127.0.0.1:1", "http://127.0.0.1:1"][: 1 if sys.version_info < (3, 11) else 2]


def test_definitions_of_each_dialect_equal_those_of_the_fleet() -> None:
    # A test of the fleet generates this file.
    example = json.loads((Path(__file__).parents[2] / "tests/conformance/definitions.json").read_text())
    assert set(example["dialects"]) == set(DIALECTS)
    for dialect, definitions in example["dialects"].items():
        assert defined(dialect, example["list"]) == definitions, dialect


def test_a_number_beyond_python_floats_loses_no_reply() -> None:
    digits = "7" * 5_000
    output = f'{{"total":1e400,"long":{digits},"n":1180591620717411303424,"price":0.10}}'
    result = f'{{"tool_call_id":null,"call":"t/0","tool":"pay","success":true,"outcome":"ok","output":{output}}}'
    reply = read_reply(f'{{"turn_id":"t","tenant":"acme","status":"done","dialect":"raw","results":[{result}]}}')
    assert reply.output == {"total": Decimal("1e400"), "long": Decimal(digits), "n": 2**70, "price": 0.1}
    assert type(reply.output["price"]) is float and reply.ok


def test_the_stop_reason_is_sent_with_the_calls() -> None:
    message = turn_message("acme", "kelly", None, {"tool_calls": [], "stop_reason": "length"})
    assert message["stop_reason"] == "length"
    assert "stop_reason" not in turn_message("acme", "kelly", None, {"tool_calls": [], "stop_reason": None})


def test_the_shard_of_a_tenant_matches_the_protocols_table() -> None:
    found = {tenant: [shard_of(tenant, of) for of in (1, 4, 16, 64)] for tenant in ("123456789", "acme", "atlas-ux", "a")}
    assert found == {"123456789": [0, 2, 6, 38], "acme": [0, 2, 14, 62], "atlas-ux": [0, 0, 4, 20], "a": [0, 3, 3, 3]}


def test_a_turn_gets_an_id_and_keeps_a_given_one() -> None:
    message = turn_message("acme", "kelly", "box", {"calls": [{"name": "echo"}], "audits": True, "strict": False})
    assert message["turn_id"] and message["tool_call_audits"] is True
    assert "strict" not in message and message["reply_to"] == "box"
    assert turn_message("acme", "kelly", None, {"answer": "x", "turn_id": "t"}) == {
        "tenant": "acme",
        "agent": "kelly",
        "answer": "x",
        "turn_id": "t",
    }


@pytest.mark.parametrize(
    "fields", [{}, {"calls": [], "answer": "x"}, {"calls": [], "turn_id": "a b"}, {"calls": [], "turn_id": "x" * 97}]
)
def test_an_invalid_turn_is_not_sent(fields: Any) -> None:
    with pytest.raises(InvalidMessage):
        turn_message("acme", "kelly", None, fields)
    with pytest.raises(InvalidMessage, match="tenant is 'a:b'"):
        turn_message("a:b", "kelly", None, {"calls": []})


@pytest.mark.parametrize("value", ["\ud800", float("nan"), object(), "x" * 1_048_577])
def test_a_message_that_is_not_utf8_json_or_too_long_is_not_sent(value: Any) -> None:
    with pytest.raises(InvalidMessage):
        written({"calls": [{"name": "echo", "arguments": {"value": value}}]})


circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize("value", [b"\xff", date(2026, 11, 27), "\ud800", float("nan"), {1}, circle])
@pytest.mark.parametrize("field", ["arguments", "user_context", "input"])
def test_a_value_that_is_not_json_gives_the_same_error_over_redis_and_http(field: str, value: Any) -> None:
    def fields() -> tuple[str, Any]:
        if field == "input":
            return "delegate", {"description": "Do it.", "input": {"value": value}}
        calls = [{"name": "echo", "arguments": {"value": value} if field == "arguments" else {}}]
        return "submit", {"calls": calls, "user_context": {"value": value} if field == "user_context" else None}

    async def submitted(fleet: AsyncFleet) -> Any:
        async with fleet:
            method, given = fields()
            return await getattr(fleet, method)("kelly", **given)

    nowhere: list[tuple[str, Any]] = [(url, {"api_key": "key"} if url.startswith("http") else {}) for url in NOWHERE]
    said = set()
    for url, options in nowhere:
        with pytest.raises(InvalidMessage, match="it cannot be written as JSON in UTF-8: ") as reported:
            asyncio.run(submitted(AsyncFleet(url, tenant="acme", retry_timeout=0.1, **options)))
        said.add(str(reported.value).partition(" in position ")[0])
        with Fleet(url, tenant="acme", retry_timeout=0.1, **options) as fleet, pytest.raises(InvalidMessage) as reported:
            method, given = fields()
            getattr(fleet, method)("kelly", **given)
        said.add(str(reported.value).partition(" in position ")[0])
    assert len(said) == 1, said


def test_keys_that_are_not_strings_become_json_strings() -> None:
    assert asked({"calls": [{1: "a", "b": 2}]}) == asked({"calls": [{"b": 2, "1": "a"}]})


def test_numbers_and_text_are_unchanged() -> None:
    assert written({"n": 90071992547409931234, "t": "ž🦊\u2028"}) == '{"n":90071992547409931234,"t":"ž🦊\u2028"}'


def test_objects_of_provider_libraries_become_json() -> None:
    class Function(BaseModel):
        name: str
        arguments: str
        more: str | None = None

    class ToolCall(BaseModel):
        id: str
        function: Function

    @dataclass
    class Block:
        type: str
        input: dict[str, Any]

    call = ToolCall(id="c", function=Function(name="echo", arguments="{}"))
    assert plain([call, Block("tool_use", {"a": None})]) == [
        {"id": "c", "function": {"name": "echo", "arguments": "{}"}},
        {"type": "tool_use", "input": {"a": None}},
    ]


def test_a_deadline_needs_a_time_zone() -> None:
    moment = datetime(2026, 11, 25, 12, tzinfo=timezone(timedelta(hours=1)))
    task = task_message("acme", "sam", "do it", None, {"deadline": moment, "capabilities": ("a",)})
    assert task["deadline"] == "2026-11-25T12:00:00+01:00" and task["capabilities"] == ["a"]
    soon = datetime.fromisoformat(task_message("acme", "sam", "x", None, {"deadline": timedelta(hours=1)})["deadline"])
    assert timedelta(0) < soon - datetime.now(timezone.utc) <= timedelta(hours=1)
    with pytest.raises(InvalidMessage, match="no time zone"):
        task_message("acme", "sam", "x", None, {"deadline": datetime(2026, 11, 25)})


def test_the_request_digest_covers_calls_but_not_the_deadline() -> None:
    def of(**fields: Any) -> str:
        turn: Any = {"turn_id": "t", "calls": [{"name": "echo"}], **fields}
        return asked(turn_message("acme", "kelly", None, turn))

    assert of() == of(priority="high", user_context={"a": 1})
    assert of() != of(calls=[{"name": "sleep"}])


REPLY = {
    "turn_id": "t",
    "tenant": "acme",
    "agent": "kelly",
    "status": "done",
    "dialect": "raw",
    "results": [
        {"tool_call_id": None, "call": "t/0", "tool": "echo", "success": True, "outcome": "ok", "output": 2**70},
    ],
}


def test_a_reply_with_unknown_fields_is_read() -> None:
    reply = read_reply(json.dumps({**REPLY, "new": 1}), 7, 2)
    assert (reply.id, reply.kind, reply.ok, reply.seq, reply.missed) == ("t", "turn", True, 7, 2)
    assert reply.output == 2**70 and reply.messages == [] and reply.accepted() is reply
    recorded = read_record("anything of the fleet's\n" + json.dumps(REPLY))
    assert recorded is not None and recorded.raw == REPLY
    assert read_record("no reply, for memory was short\n") is None
    for broken in ("{", "[]", '{"turn_id": "t"}'):
        with pytest.raises(FleetError):
            read_reply(broken)


def test_each_rejection_has_its_exception() -> None:
    error = {"code": "unknown_agent", "message": "who?"}
    with pytest.raises(Rejected, match="unknown_agent: who") as rejected:
        read_reply(json.dumps({**REPLY, "status": "rejected", "error": error})).accepted()
    assert rejected.value.code == "unknown_agent" and not rejected.value.passing and rejected.value.reply.results
    with pytest.raises(Conflict, match=f"^conflict: {REPLY['turn_id']}: who"):
        read_reply(json.dumps({**REPLY, "status": "conflict", "error": error})).accepted()


def test_the_reply_timeout_names_both_possible_causes() -> None:
    reported = str(ReplyTimeout("order-17", 20.0, "acme"))
    assert reported.startswith("no reply to order-17 within 20 s. It can still run or wait for approval, or the fleet does not know")
    assert reported.endswith("the tenant or the id: tickfleet explain acme:order-17")
    assert str(ReplyTimeout("order-17", 20.0)).endswith(": tickfleet explain TENANT:order-17")
    source = (Path(__file__).parents[2] / "typescript/src/errors.ts").read_text(encoding="utf-8")
    # The TypeScript client must use the same text.
    assert " ms. It can still run or wait for approval, or the fleet does not know " in source
    assert "the tenant or the id: tickfleet explain " in source


def test_a_call_that_waits_for_approval_has_not_ended() -> None:
    waits = read_reply(json.dumps({**REPLY, "status": "pending_approval", "results": [], "approval": {"id": "a"}}))
    assert not waits.is_end and waits.approval == {"id": "a"} and not waits.ok
    assert read_reply(json.dumps(REPLY)).is_end and not read_reply(json.dumps({**REPLY, "status": "later"})).is_end


def entries(*seqs: int) -> list[Entry]:
    return [entry_of(f"{seq}-0", {"reply": "{}", "seq": str(seq)}) for seq in seqs]


def test_a_gap_in_an_inbox_is_reported_once_and_searched_for() -> None:
    inbox = Inbox("box")
    assert [entry.missed for entry in inbox.fresh(entries(5, 6))] == [0, 0]
    assert [entry.missed for entry in inbox.fresh(entries(9))] == [2] and inbox.last == "0-0"
    # The inbox is read from the start again. Entries that were read must not be returned twice.
    assert [entry.seq for entry in inbox.fresh(entries(5, 6, 7, 9))] == [7]
    assert inbox.last == "9-0" and not inbox.is_rewinding


def test_a_recreated_inbox_has_no_gap() -> None:
    inbox = Inbox("box")
    inbox.fresh(entries(*range(1, COUNT + 1)))
    inbox.removed([f"{seq}-0" for seq in range(1, COUNT + 1)])
    reported = inbox.fresh([Entry("3-1", 1, "{}")])
    assert [entry.missed for entry in reported] == [0] and inbox.is_rewinding
    assert inbox.is_behind("1-0") and not inbox.is_behind("3-1") and not inbox.is_behind(None)


def test_an_invalid_url_has_a_readable_error() -> None:
    for url, said in (("http://x", "begins with 'http'"), ("redis+sentinel://a,b", "lacks the name of the primary")):
        with pytest.raises(ValueError, match=said):
            connect(url)


def test_the_error_names_the_default_url_if_the_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    async def name_of(url: str) -> str:
        return Redis(url, 1.0)._name

    monkeypatch.delenv("REDIS_URL", raising=False)
    assert asyncio.run(name_of(DEFAULT_URL)) == f"no URL, and no tickfleet dev in this folder: Redis at the default {DEFAULT_URL}"
    assert asyncio.run(name_of("redis://127.0.0.1:1")) == "Redis"
    monkeypatch.setenv("REDIS_URL", DEFAULT_URL)
    assert asyncio.run(name_of(DEFAULT_URL)) == "Redis"


def test_the_script_equals_that_of_the_typescript_client() -> None:
    source = (Path(__file__).parents[2] / "typescript/src/redis.ts").read_text(encoding="utf-8")
    assert f"const ENQUEUE = `{ENQUEUE}`;" in source


def errors() -> Iterator[Exception]:
    """Yields one error of each class that this package raises."""
    reply = read_reply(REFUSAL)
    special: dict[type[FleetError], Callable[[], FleetError]] = {
        Throttled: lambda: Throttled("inbox_full", "too many replies wait"),
        Rejected: lambda: Rejected("unknown_agent", "no such agent", reply),
        Conflict: lambda: Conflict("order-17", "it is in use"),
        ReplyTimeout: lambda: ReplyTimeout("order-17", 30),
        Unavailable: lambda: Unavailable("Redis cannot be reached", "order-17"),
        CallFailed: lambda: CallFailed(DENIED),
        CallRefused: lambda: CallRefused(DENIED),
        OutcomeUnknown: lambda: OutcomeUnknown(DENIED),
    }
    kinds = [FleetError]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        yield special.get(kind, lambda kind=kind: kind("it went wrong"))()
    yield FleetError("closed", "closed")
    yield ToolError.transient("later", retry_after=3, not_executed=True)
    yield ToolError(ValueError("no"), details={"a": 1})  # type: ignore[arg-type]
    yield DuplicateTool("twice")


DENIED = Result("t/0", "pay", False, "denied", None, None, None, "application/json", 0, 0, None)
REFUSAL = json.dumps({"turn_id": "t", "tenant": "acme", "status": "rejected", "dialect": "raw", "results": []})


@pytest.mark.parametrize("error", list(errors()), ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: Exception) -> None:
    error.extra = "while it paid"  # type: ignore[attr-defined]
    for found in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error), copy.copy(error)):
        assert type(found) is type(error) and str(found) == str(error)
        assert found.args == error.args and found.__dict__ == error.__dict__


def test_every_error_can_be_imported_from_the_package_root() -> None:
    import tickfleet
    from tickfleet import client

    kinds = {type(error).__name__ for error in errors()}
    assert kinds <= set(tickfleet.__all__), kinds - set(tickfleet.__all__)
    raised = {name for name, kind in vars(client).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert raised <= kinds, f"{raised - kinds}: add it to errors()"
    assert all(getattr(tickfleet, name) for name in tickfleet.__all__)
    assert tickfleet.Rejected is Rejected


@pytest.mark.parametrize(
    ("missing", "use", "remedy"),
    [
        ("redis", "Fleet('redis://127.0.0.1:1', tenant='demo')", "pip install 'tickfleet[redis]'"),
        ("httpx2", "Fleet('http://127.0.0.1:1', api_key='k')", "a gateway needs "),
        ("langchain_core", "import tickfleet.adapters.langgraph", "pip install 'tickfleet[langgraph]'"),
        ("agents", "import tickfleet.adapters.openai_agents", "pip install 'tickfleet[openai-agents]'"),
        ("pydantic_ai", "import tickfleet.adapters.pydantic_ai", "pip install 'tickfleet[pydantic-ai]'"),
    ],
)
def test_the_error_names_the_missing_extra_and_tools_need_none(missing: str, use: str, remedy: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom tickfleet import Fleet, Rejected, tool\n{use}"
    environment = {"PYTHONPATH": str(Path(__file__).parents[1] / "src"), "PATH": os.environ["PATH"]}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ran.returncode == 1 and remedy in ran.stderr.splitlines()[-1], ran.stderr


def raises() -> None:
    raise Rejected("unknown_agent", "no such agent", read_reply(REFUSAL))


def test_an_exception_of_a_child_process_is_raised_in_its_parent() -> None:
    with ProcessPoolExecutor(1) as workers, pytest.raises(Rejected, match="no such agent") as raised:
        workers.submit(raises).result()
    assert raised.value.reply == read_reply(REFUSAL)


USES: dict[str, Callable[[AsyncFleet], Awaitable[Any]]] = {
    "run": lambda fleet: fleet.run("kelly", answer="x", timeout=1),
    "submit": lambda fleet: fleet.submit("kelly", answer="x"),
    "send": lambda fleet: fleet.send("kelly", answer="x"),
    "delegate": lambda fleet: fleet.delegate("kelly", "Do it."),
    "wait": lambda fleet: fleet.wait("order-17", timeout=1),
    "reply": lambda fleet: fleet.reply("order-17"),
    "tools": lambda fleet: fleet.tools("kelly"),
    "cancel": lambda fleet: fleet.cancel("order-17"),
    "follow": lambda fleet: anext(fleet.follow("order-17")),
    "close": lambda fleet: fleet.close(),
    "async with": lambda fleet: fleet.__aenter__(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("url", NOWHERE)
def test_a_second_event_loop_is_rejected_at_once(url: str, use: str) -> None:
    fleet = AsyncFleet(url, api_key="k" if url.startswith("http") else None, tenant="demo", retry_timeout=0)

    async def used(what: str) -> None:
        await USES[what](fleet)

    with pytest.raises(Unavailable):
        asyncio.run(used("tools"))
    with pytest.raises(WrongLoop, match="AsyncFleet in each event loop"):
        asyncio.run(asyncio.wait_for(used(use), 0.5))


@pytest.mark.skipif(len(NOWHERE) == 1, reason="a gateway needs Python 3.11 or later")
def test_a_turn_cannot_be_awaited_on_another_event_loop() -> None:
    fleet = AsyncFleet("http://127.0.0.1:1", api_key="k", tenant="demo", retry_timeout=0)
    inbox = AsyncFleet("redis://127.0.0.1:1", tenant="demo", retry_timeout=0)

    async def first() -> Any:
        inbox.check_loop()
        # `_submit` sends nothing until the reply is awaited.
        return await fleet._submit("kelly", None, {"answer": "x"}, True), inbox.replies("box")

    submitted, replies = asyncio.run(first())
    for late in (submitted.reply, submitted.cancel, replies.next, replies.finish):
        with pytest.raises(WrongLoop):
            asyncio.run(late())
