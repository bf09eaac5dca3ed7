"""Runs the conformance cases with the Python client: `conformance.py CASES TENANT [--blocking]`, against `REDIS_URL`,
or through `GATEWAY_URL` with `GATEWAY_KEY`.

With `--blocking` they run through `Fleet`, otherwise through `AsyncFleet`. Exits with 1 and names the first step that
failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from tickfleet.client import AsyncFleet, Conflict, Fleet, NotAccepted, Rejected, Reply, shard_of

TIMEOUT = 60.0


def matches(expected: Any, found: Any, path: str) -> None:
    """Fails if `found` differs from `expected`. Members that `expected` does not name may have any value."""
    if expected == "$any":
        wrong = found is None
    elif isinstance(expected, dict) and "$json" in expected:
        wrong = json.loads(expected["$json"]) != found
    elif isinstance(expected, dict) and "$contains" in expected:
        wrong = expected["$contains"] not in found
    elif isinstance(expected, dict):
        wrong = not isinstance(found, dict)
        for key, value in expected.items() if not wrong else ():
            if value == "$absent":
                wrong = wrong or key in found
            else:
                matches(value, found.get(key), f"{path}.{key}")
    elif isinstance(expected, list):
        wrong = not isinstance(found, list) or len(found) != len(expected)
        for index, value in enumerate(expected if not wrong else ()):
            matches(value, found[index], f"{path}[{index}]")
    else:
        wrong = expected != found
    if wrong:
        raise AssertionError(f"{path}: expected {expected!r}, found {found!r}")


class Blocking:
    """A `Fleet` with the interface of an `AsyncFleet`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.fleet = Fleet(**options)

    async def __aenter__(self) -> Blocking:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.fleet.close()

    def __getattr__(self, name: str) -> Any:
        def replies(*args: Any, **options: Any) -> Any:
            blocking = self.fleet.replies(*args, **options)
            return type("Replies", (), {"next": lambda _, timeout: asyncio.to_thread(blocking.next, timeout)})()

        async def ask(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(getattr(self.fleet, name), *args, **options)

        return replies if name == "replies" else ask


class Runner:
    def __init__(self, tenant: str, blocking: bool) -> None:
        self.gateway = os.environ.get("GATEWAY_URL")
        self.tenant = tenant
        self.make = Blocking if blocking else lambda options: AsyncFleet(**options)
        self.fleet = self.make(self.options())
        self.kept: dict[str, Reply] = {}
        self.readers: dict[str, Any] = {}

    def options(self, **more: Any) -> dict[str, Any]:
        if self.gateway:
            return {"url": self.gateway, "api_key": os.environ["GATEWAY_KEY"], "tenant": self.tenant, **more}
        return {"url": os.environ["REDIS_URL"], "tenant": self.tenant, **more}

    def has(self, case: dict[str, Any]) -> bool:
        """False through a gateway, if the case needs Redis."""
        return not (self.gateway and case.get("needs") == "redis")

    @staticmethod
    def fields(message: dict[str, Any]) -> dict[str, Any]:
        renamed = {"tool_call_audits": "audits"}
        return {renamed.get(key, key): value for key, value in message.items()}

    async def step(self, step: dict[str, Any]) -> None:
        if "lose" in step:
            return await self.lose(step["inbox"], step["lose"])
        if "send" in step:
            await self.fleet.send(reply_to=step.get("inbox"), **self.fields(step["send"]))
            return
        try:
            reply = await self.ask(step)
        except (Rejected, Conflict, NotAccepted) as error:
            if error.code != step.get("fails"):
                raise
            return
        if "fails" in step:
            raise AssertionError(f"expected {step['fails']}, found {reply}")
        if "missed" in step:
            matches(step["missed"], reply.missed, "missed")
        if "equals" in step:
            matches(self.kept[step["equals"]].raw, reply.raw, "reply")
        matches(step.get("reply", {}), reply.raw, "reply")
        if "as" in step:
            self.kept[step["as"]] = reply

    async def ask(self, step: dict[str, Any]) -> Reply:
        if "record" in step:
            return await self.fleet.wait(step["record"], timeout=TIMEOUT)
        if "next" in step:
            inbox = step["next"]
            reader = self.readers.setdefault(inbox, self.fleet.replies(inbox))
            reply = await reader.next(TIMEOUT)
            if reply is None:
                raise AssertionError(f"no reply in {inbox}")
            return reply
        if "delegate" in step:
            message = dict(step["delegate"])
            agent, words = message.pop("target_agent"), message.pop("task_description")
            task = await self.fleet.delegate(agent, words, **message)
            if "cancel" in step:
                await self.fleet.cancel(message["task_id"], task=True, reason=step["cancel"])
            return await self.reply(task)
        if "client" in step:
            async with self.make(self.options(**step["client"])) as other:
                return await other.run(**self.fields(step["run"]), timeout=TIMEOUT)
        return await self.fleet.run(**self.fields(step["run"]), timeout=TIMEOUT)

    async def reply(self, task: Any) -> Reply:
        if isinstance(self.fleet, Blocking):
            return await asyncio.to_thread(task.reply, TIMEOUT)
        return await task.reply(TIMEOUT)

    async def lose(self, inbox: str, at: int) -> None:
        from tickfleet.client._redis import connect

        key = f"{{tickfleet:{shard_of(self.tenant, 1)}}}:replies:{self.tenant}:{inbox}"
        raw = connect(os.environ["REDIS_URL"])
        entries = await raw.xrange(key)
        await raw.xdel(key, entries[at][0])
        await raw.aclose()


async def main(cases: str, tenant: str, blocking: bool) -> None:
    with open(cases, encoding="utf-8") as file:
        text = file.read().replace("{tenant}", tenant)
    runner, done = Runner(tenant, blocking), 0
    async with runner.fleet:
        for case in filter(runner.has, json.loads(text)["cases"]):
            for number, step in enumerate(case["steps"]):
                try:
                    await runner.step(step)
                except Exception as error:
                    sys.exit(f"{case['name']}, step {number}: {type(error).__name__}: {error}")
            done += 1
    if runner.gateway and "redis" in sys.modules:
        sys.exit("the way through a gateway has imported the client of Redis")
    print(f"{done} cases")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], "--blocking" in sys.argv))
