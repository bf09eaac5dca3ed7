# ANCHOR: turn
from tickfleet import Fleet

# A model returns this as message.tool_calls.
tool_calls = [
    {"id": "call_1", "type": "function", "function": {"name": "look_up_order", "arguments": '{"order": "A-1001"}'}}
]

with Fleet(tenant="acme") as fleet:
    reply = fleet.run("support", tool_calls=tool_calls)
print(reply.messages[0]["content"])
# ANCHOR_END: turn
