"""The tools of the shop. Save this file, and the running fleet uses the new code."""

from tickfleet import ToolError, tool

ORDERS = {
    "A-1001": {"order": "A-1001", "customer": "kim", "amount": 42.50},
    "A-1002": {"order": "A-1002", "customer": "lee", "amount": 890.50},
    "A-1003": {"order": "A-1003", "customer": "kim", "amount": 99.50},
}


# `read` has no effect, so the fleet repeats the call if it fails.
@tool(effect="read")
def look_up_order(order: str) -> dict:
    """Returns an order with its customer and amount.

    Args:
        order: The order number, such as A-1001.
    """
    if order not in ORDERS:
        raise ToolError.permanent(f"There is no order {order}. Orders: {', '.join(ORDERS)}.")
    return ORDERS[order]


# `once` is not repeated if it may have paid already. Two refunds of one order are one effect: the second call returns the
# first result.
@tool(effect="once", effect_key=["/order"])
def refund_order(order: str, amount: float) -> dict:
    """Pays an amount back to the customer of an order.

    Args:
        order: The order number, such as A-1001.
        amount: The amount to pay back, in euros.
    """
    # Call your payment service here.
    return {"refund": f"R-{order}", "order": order, "amount": amount}
