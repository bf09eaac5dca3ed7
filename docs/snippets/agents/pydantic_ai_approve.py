"""A run that an approval ends: python3 agents/pydantic_ai_approve.py case-8 'Refund order A-1002.'

After the decision, resume it: python3 agents/pydantic_ai_approve.py case-8
"""

import asyncio
import sys
from pathlib import Path

from pydantic import TypeAdapter
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessagesTypeAdapter
from tickfleet import AsyncFleet
from tickfleet.adapters.pydantic_ai import FleetToolset

REQUESTS = TypeAdapter(DeferredToolRequests)


async def main(case: str, question: str | None = None) -> None:
    history, waiting = Path(f"{case}-history.json"), Path(f"{case}-waiting.json")
    async with AsyncFleet(tenant="acme") as fleet:
        # ANCHOR: resume
        toolset = FleetToolset(fleet, "support")
        agent = Agent("openai:gpt-5", toolsets=[toolset], output_type=[str, DeferredToolRequests])
        if question is None:
            messages = ModelMessagesTypeAdapter.validate_json(history.read_bytes())
            results = await toolset.results(REQUESTS.validate_json(waiting.read_bytes()))
            result = await agent.run(message_history=messages, deferred_tool_results=results)
        else:
            result = await agent.run(question)
        if isinstance(result.output, DeferredToolRequests):
            history.write_bytes(result.all_messages_json())
            waiting.write_bytes(REQUESTS.dump_json(result.output))
            for approval in result.output.metadata.values():
                print(approval["tool"], approval["arguments"], "waits for", approval["approval"])
        else:
            print(result.output)
        # ANCHOR_END: resume


asyncio.run(main(*sys.argv[1:]))
