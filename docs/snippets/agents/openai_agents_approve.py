"""A run that an approval interrupts: python3 agents/openai_agents_approve.py case-8 'Refund order A-1002.'

After the decision, resume it: python3 agents/openai_agents_approve.py case-8
"""

import asyncio
import sys
from pathlib import Path

from agents import Agent, Runner, RunState
from tickfleet import AsyncFleet
from tickfleet.adapters.openai_agents import fleet_tools


async def main(case: str, question: str | None = None) -> None:
    saved = Path(f"{case}.json")
    async with AsyncFleet(tenant="acme") as fleet:
        # ANCHOR: resume
        tools = await fleet_tools(fleet, "support", run_id=case, interrupt=True)
        agent = Agent(name="support", model="gpt-5", tools=tools)
        if question is None:
            state = await RunState.from_string(agent, saved.read_text())
            for item in state.get_interruptions():
                # This only makes the tool ask the fleet. Approvers of the fleet decide.
                state.approve(item)
            result = await Runner.run(agent, state)
        else:
            result = await Runner.run(agent, question)
        if result.interruptions:
            saved.write_text(result.to_state().to_string())
            for call in tools.approvals(result):
                print(call["tool"], call["arguments"], "waits for", call["approval"])
        else:
            print(result.final_output)
        # ANCHOR_END: resume


asyncio.run(main(*sys.argv[1:]))
