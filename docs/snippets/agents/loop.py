"""The loop of an agent whose tools run in a fleet: python3 agents/loop.py 'Refund order A-1001.'"""

# ANCHOR: loop
import sys

from openai import OpenAI
from tickfleet import Fleet

model, messages = OpenAI(), [{"role": "user", "content": sys.argv[1]}]
with Fleet(tenant="acme") as fleet:
    while True:
        response = model.chat.completions.create(model="gpt-5", messages=messages, tools=fleet.tools("support"))
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += fleet.run("support", tool_calls=message.tool_calls, turn_id=response.id).messages
print(message.content)
# ANCHOR_END: loop
