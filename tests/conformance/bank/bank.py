"""A bank with a ledger, as tools of a fleet. `user_context` of a turn names the ledger's file and the seconds that a
payment takes."""

from __future__ import annotations

import os
import time

from tickfleet import Context, ToolError, tool


def book(to: str, amount: int, context: Context) -> str:
    about = context.user_context
    # The money moves before the result is returned. A caller that stops waiting has paid anyway.
    ledger = os.open(about["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(ledger, f"{amount} to {to}\n".encode())
    finally:
        os.close(ledger)
    time.sleep(about["seconds"])
    return f"paid {amount} to {to}"


@tool(effect="once", timeout=30)
def pay(to: str, amount: int, context: Context) -> str:
    """Pays an amount.

    Args:
        to: Who gets it.
        amount: How much.
    """
    return book(to, amount, context)


@tool(effect="once", timeout=30, requires_approval=True)
def transfer(to: str, amount: int, context: Context) -> str:
    """Pays an amount after an approval.

    Args:
        to: Who gets it.
        amount: How much.
    """
    return book(to, amount, context)


@tool(effect="read")
def balance(account: str, context: Context) -> str:
    """Returns the balance of an account, and who asks.

    Args:
        account: Whose.
    """
    if account == "nobody":
        raise ToolError("there is no account of nobody")
    # Calls of one response run at the same time if each sees the other's mark.
    about = context.user_context
    marks = f"{about['ledger']}.{account}"
    open(marks, "w").close()
    time.sleep(about["seconds"])
    return f"{about.get('user')} sees 100"
