"""An agent on Responses: python3 agents/openai_responses.py 'Refund order A-1001.'"""

# ANCHOR: agent
import sys

from openai import OpenAI
from tickfleet import Fleet

model, items = OpenAI(), [{"role": "user", "content": sys.argv[1]}]
with Fleet(tenant="acme") as fleet:
    tools = fleet.tools("support", format="openai_responses")
    while True:
        response = model.responses.create(model="gpt-5", input=items, tools=tools)
        items += response.output
        if not any(item.type == "function_call" for item in response.output):
            break
        reply = fleet.run("support", calls=response.output, format="openai_responses", turn_id=response.id)
        items += reply.messages
print(response.output_text)
# ANCHOR_END: agent
