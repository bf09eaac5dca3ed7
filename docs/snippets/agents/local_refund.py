# ANCHOR: local
import sys

from tickfleet import Fleet
from tickfleet.client import CallRefused

ledger = []  # stands for your own objects: a connection, a session, a closure

with Fleet(tenant="acme") as fleet:

    @fleet.governed(agent="support")
    def refund_order(order: str, amount: float) -> dict:
        ledger.append(order)
        return {"order": order, "amount": amount}

    try:
        print(refund_order(sys.argv[1], float(sys.argv[2])), f"ran here: {bool(ledger)}")
    except CallRefused as error:
        print(error.code)
# ANCHOR_END: local
