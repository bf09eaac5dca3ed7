# ANCHOR: tool
from tickfleet import Context, tool


@tool(effect="idempotent")
async def refund_in_full(order: str, context: Context) -> str:
    """Refunds the whole amount of an order.

    Args:
        order: The order number, such as A-1001.
    """
    quote = (await context.call("quote_refund", {"order": order})).unwrap()
    refund = await context.call("refund_order", {"order": order, "amount": quote["amount"]})
    return f"Refunded {quote['amount']}." if refund.ok else f"Not refunded: {refund.error}"
# ANCHOR_END: tool
