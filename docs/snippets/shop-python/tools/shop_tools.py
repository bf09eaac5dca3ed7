# ANCHOR: tools
from pydantic import BaseModel

from tickfleet import Context, ToolError, tool

STOCK = {"MUG-1": 12, "MUG-2": 0}


class Stock(BaseModel):
    sku: str
    pieces: int


@tool(effect="read", timeout=5)
def check_stock(sku: str) -> Stock:
    """Returns the number of pieces in stock. Use it before you promise an article.

    Args:
        sku: The article number, such as MUG-1.
    """
    if sku not in STOCK:
        raise ToolError.permanent(f"There is no article {sku}. Articles: {', '.join(STOCK)}.")
    return Stock(sku=sku, pieces=STOCK[sku])


@tool(effect="once")
async def reserve_stock(sku: str, pieces: int, context: Context) -> str:
    """Reserves pieces of an article for the customer.

    Args:
        sku: The article number, such as MUG-1.
        pieces: The number of pieces.
    """
    if pieces > STOCK.get(sku, 0):
        raise ToolError.permanent(f"Only {STOCK.get(sku, 0)} pieces of {sku} are in stock.")
    context.log.info("reserve %d of %s for %s", pieces, sku, context.agent)
    return f"{pieces} of {sku} reserved"
# ANCHOR_END: tools
