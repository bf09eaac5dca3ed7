"""The agent before the tutorial: its tools run in its own process.

    python3 agents/in_process.py 'Refund order A-1002.'
"""

import json
import sys

from openai import OpenAI

ORDERS = {
    "A-1001": {"order": "A-1001", "customer": "kim", "amount": 42.50, "status": "delivered"},
    "A-1002": {"order": "A-1002", "customer": "lee", "amount": 890.00, "status": "delivered"},
    "A-1003": {"order": "A-1003", "customer": "kim", "amount": 15.00, "status": "shipped"},
}


def look_up_order(order):
    return ORDERS[order]


def refund_order(order, amount):
    return {"refund": f"R-{order}", "order": order, "amount": amount}


def definition(name, description, properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


ORDER, AMOUNT = {"type": "string"}, {"type": "number"}
TOOLS = [
    definition("look_up_order", "Returns an order.", {"order": ORDER}),
    definition("refund_order", "Pays an amount back.", {"order": ORDER, "amount": AMOUNT}),
]
FUNCTIONS = {"look_up_order": look_up_order, "refund_order": refund_order}

# ANCHOR: loop
model, messages = OpenAI(), [{"role": "user", "content": sys.argv[1]}]
while True:
    response = model.chat.completions.create(model="gpt-5", messages=messages, tools=TOOLS)
    message = response.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
print(message.content)
# ANCHOR_END: loop
