"""A currency converter: asynchronous, with a reST docstring."""

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from tickfleet import Context, ToolError, tool


class Currency(Enum):
    """A currency with a known rate."""

    EUR = "EUR"
    USD = "USD"
    CHF = "CHF"


#: The value of one unit in euros.
RATES = {Currency.EUR: Decimal(1), Currency.USD: Decimal("0.85"), Currency.CHF: Decimal("1.05")}


@dataclass
class Converted:
    amount: float
    currency: Currency


@tool(effect="read", timeout=5, category="examples")
async def convert(amount: float, source: Currency, target: Currency, context: Context) -> Converted:
    """Converts an amount of money from one currency into another.

    :param amount: How much, in units of the source currency.
    :param source: The currency that the amount is in.
    :param target: The currency to convert it into.
    :returns: The amount in the target currency.
    """
    if amount < 0:
        raise ToolError.invalid_arguments("The amount must not be negative.")
    # A real tool would call a service here. If the call is canceled, an asynchronous tool ends at its current `await`.
    await asyncio.sleep(0)
    context.log.info("converting from %s", source.value)
    worth = Decimal(str(amount)) * RATES[source] / RATES[target]
    return Converted(round(float(worth), 2), target)
