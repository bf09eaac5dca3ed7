"""An agent on Chat Completions: python3 agents/openai_chat.py 'Refund order A-1001.'"""

# ANCHOR: agent
import sys

from openai import OpenAI
from tickfleet import Fleet

STEPS_MAX = 10


def answer(model: OpenAI, fleet: Fleet, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    for _ in range(STEPS_MAX):
        response = model.chat.completions.create(model="gpt-5", messages=messages, tools=fleet.tools("support"))
        choice = response.choices[0]
        messages.append(choice.message)
        if not choice.message.tool_calls:
            return choice.message.content
        reply = fleet.run(
            "support",
            tool_calls=choice.message.tool_calls,
            stop_reason=choice.finish_reason,
            turn_id=response.id,
        )
        messages += reply.messages
    return "The agent made too many steps."


with Fleet(tenant="acme") as fleet:
    print(answer(OpenAI(), fleet, sys.argv[1]))
# ANCHOR_END: agent
