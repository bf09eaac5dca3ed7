# ANCHOR: later
from tickfleet import Fleet

quote = {"name": "quote_refund", "arguments": {"order": "A-1001"}}
with Fleet(tenant="acme") as fleet:
    turn = fleet.submit("support", calls=[quote], turn_id="case-7-quote")
    print(turn.reply(timeout=30).output)
    print(fleet.wait("case-7-quote").output)
# ANCHOR_END: later
