"""The agent after the tutorial: its tools run in the fleet.

    python3 agents/governed.py case-1 'Refund order A-1002.'
"""

# ANCHOR: loop
import sys

from openai import OpenAI
from tickfleet import Fleet

case, question = sys.argv[1:]
model, messages = OpenAI(), [{"role": "user", "content": question}]
with Fleet(tenant="acme") as fleet:
    for step in range(1, 11):
        response = model.chat.completions.create(model="gpt-5", messages=messages, tools=fleet.tools("support"))
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        reply = fleet.run("support", tool_calls=message.tool_calls, turn_id=f"{case}-{step}")
        messages += reply.messages
print(message.content)
# ANCHOR_END: loop
