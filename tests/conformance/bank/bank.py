"""A bank with a ledger, as a tool of a fleet. `user_context` of a turn names the ledger's file and the seconds that
a payment takes."""

from __future__ import annotations

import os
import time

from tickfleet import Context, tool


@tool(effect="once", timeout=30)
def pay(to: str, amount: int, context: Context) -> str:
    """Pays an amount.

    Args:
        to: Who gets it.
        amount: How much.
    """
    about = context.user_context
    # The money moves before the result is returned. A caller that stops waiting has paid anyway.
    ledger = os.open(about["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(ledger, f"{amount} to {to}\n".encode())
    finally:
        os.close(ledger)
    time.sleep(about["seconds"])
    return f"paid {amount} to {to}"
