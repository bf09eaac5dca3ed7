# ANCHOR: tools
from tickfleet import ToolError, tool

ORDERS = {
    "A-1001": {"order": "A-1001", "customer": "kim", "amount": 42.50, "status": "delivered"},
    "A-1002": {"order": "A-1002", "customer": "lee", "amount": 890.00, "status": "delivered"},
    "A-1003": {"order": "A-1003", "customer": "kim", "amount": 15.00, "status": "shipped"},
}


@tool(effect="read")
def look_up_order(order: str) -> dict:
    """Returns an order with its customer, amount and status.

    Args:
        order: The order number, such as A-1001.
    """
    if order not in ORDERS:
        raise ToolError.permanent(f"There is no order {order}.")
    return ORDERS[order]


@tool(effect="once")
def refund_order(order: str, amount: float) -> dict:
    """Pays an amount back to the customer of an order.

    Args:
        order: The order number, such as A-1001.
        amount: The amount to pay back, in euros.
    """
    return {"refund": f"R-{order}", "order": order, "amount": amount}
# ANCHOR_END: tools
