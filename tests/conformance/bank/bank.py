"""A bank with a ledger, as tools of a fleet. `user_context` of a turn names the ledger's file and the seconds that a
payment takes."""

from __future__ import annotations

import os
import pathlib
import time

from tickfleet import Context, Image, ToolError, tool


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


@tool(effect="read", timeout=15)
def balance(account: str, context: Context) -> str:
    """Returns the balance of an account, and who asks.

    Args:
        account: Whose.
    """
    about = context.user_context
    if account == "nobody":
        raise ToolError("there is no account of nobody")
    # With `together`, the calls for these accounts must run at the same time: each waits for the others.
    pathlib.Path(f"{about['ledger']}.{account}").touch()
    while not all(os.path.exists(f"{about['ledger']}.{other}") for other in about.get("together", [])):
        time.sleep(0.02)
    return f"{about.get('user')} sees 100 of {account}, session data {context.session_data}"


@tool(effect="read")
def statement(account: str) -> list[str | Image]:
    """Returns the statement of an account as an image.

    Args:
        account: Whose.
    """
    return [f"statement of {account}", Image(b"GIF89a")]
