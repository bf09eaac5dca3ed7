# ANCHOR: gateway
import os

from tickfleet import Fleet

with Fleet(os.environ["FLEET_URL"], api_key=os.environ["FLEET_KEY"]) as fleet:
    reply = fleet.run("support", calls=[{"name": "quote_refund", "arguments": {"order": "A-1001"}}])
print(reply.tenant, reply.output)
# ANCHOR_END: gateway
