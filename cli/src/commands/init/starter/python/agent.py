"""An agent that refunds orders. Its tool calls run in the fleet.

    python agent.py 'Refund order A-1001.'

If OPENAI_API_KEY is set, it asks OpenAI (pip install openai). Otherwise it asks the script in `scripted_model`.
"""

import json
import os
import re
import sys

from tickfleet import Fleet


def openai_model(messages, tools):
    from openai import OpenAI

    model = os.environ.get("OPENAI_MODEL", "gpt-5")
    response = OpenAI().chat.completions.create(model=model, messages=messages, tools=tools)
    return response.choices[0].message.model_dump(exclude_none=True)


def scripted_model(messages, tools):
    """Looks up the order, refunds it, and repeats the last result."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    order = re.search(r"A-\d+", messages[0]["content"])
    if order is None:
        return {"role": "assistant", "content": "Which order? For example A-1001."}
    arguments = {"order": order.group()}
    if not results:
        name = "look_up_order"
    elif len(results) == 1 and results[0].startswith("{"):
        name, arguments = "refund_order", arguments | {"amount": json.loads(results[0])["amount"]}
    else:
        return {"role": "assistant", "content": results[-1]}
    call = {"name": name, "arguments": json.dumps(arguments, separators=(",", ":"))}
    return {"role": "assistant", "tool_calls": [{"id": f"call_{len(messages)}", "type": "function", "function": call}]}


def main(task):
    model = openai_model if os.environ.get("OPENAI_API_KEY") else scripted_model
    messages = [{"role": "user", "content": task}]
    # Without arguments, finds the `tickfleet dev` of this folder.
    with Fleet() as fleet:
        tools = fleet.tools("support")
        while True:
            message = model(messages, tools)
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            for call in message["tool_calls"]:
                print("call", call["function"]["name"], call["function"]["arguments"], flush=True)
            # Waits for limits and approvals, and returns one message for each call.
            messages += fleet.run("support", tool_calls=message["tool_calls"]).messages


if __name__ == "__main__":
    print(main(" ".join(sys.argv[1:]) or "Refund order A-1001."))
