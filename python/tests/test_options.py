"""Tests of the options of `tool` that declare guards, as `tools.yaml` does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tickfleet import Approval, Cache, Reconcile, tool
from tickfleet._tool import of


def test_a_function_can_declare_every_field_of_the_configuration():
    @tool(
        id="payments.pay",
        description="Pays an invoice.",
        effect_key=["/to", "/amount"],
        effect_window=timedelta(hours=2),
        approval=Approval(by=["finance", "audit"], quorum=2, expires=90, narrow=["/amount"]),
        reconcile=Reconcile(
            tool="find_payment",
            arguments={"key": "$idempotency_key", "to": "/to", "kind": "invoice"},
            happened="/found",
            output="/payment",
            tries=3,
            grace=timedelta(seconds=30),
        ),
        durable="local",
        timeout=timedelta(seconds=9),
    )
    def pay_all_options(to: str, amount: int, note: str = "") -> None:
        """Is not shown."""

    declared = of(pay_all_options).definition()
    assert declared["id"] == "payments.pay" and declared["description"] == "Pays an invoice."
    assert declared["timeout_ms"] == 9_000 and declared["durable"] == "local"
    assert declared["effect_key"] == {"arguments": ["/to", "/amount"], "window_ms": 7_200_000}
    assert declared["approval"] == {"by": ["audit", "finance"], "quorum": 2, "expires_ms": 90_000, "narrow": ["/amount"]}
    assert declared["reconcile"] == {
        "tool": "find_payment",
        "arguments": {"key": "$idempotency_key", "to": "/to", "kind": "invoice"},
        "happened": "/found",
        "output": "/payment",
        "tries": 3,
        "grace_ms": 30_000,
    }

    @tool(effect="read", cache=Cache(ttl=60, per="agent"), durable="replica")
    def read_all_options() -> None:
        """Reads."""

    declared = of(read_all_options).definition()
    assert declared["cache"] == {"ttl_ms": 60_000, "per": "agent"} and declared["durable"] == "replica"


FOUND = {"tool": "find", "happened": "/found"}


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"effect_key": ["to"]}, "effect_key is 'to'; expected JSON pointers to arguments, such as /amount"),
        ({"effect_key": ["/too"]}, "effect_key is '/too'; expected a required argument: /to, /amount"),
        ({"effect_key": ["/note"]}, "effect_key is '/note'; expected a required argument: /to, /amount"),
        ({"effect_key": "/to"}, "effect_key is '/to'; expected a list of texts, not one text"),
        ({"effect_key": ["/to", "/to"]}, "effect_key is ['/to', '/to']; expected 1 to 16 arguments, each once"),
        ({"effect_key": ["/to"], "effect": "read"}, "effect_key requires the effect once, and the effect is 'read'"),
        ({"effect_window": 60}, "effect_window is 60; expected an effect_key beside it"),
        ({"effect_key": ["/to"], "effect_window": "1h"}, "effect_window is '1h'; expected a number of seconds, or a"),
        ({"effect_key": ["/to"], "effect_window": 0.5}, "effect_window is 0.5; expected 1 to 2678400 seconds"),
        ({"cache": Cache(ttl=60)}, "cache requires the effect read, and the effect is 'once'"),
        ({"cache": 60, "effect": "read"}, "cache is 60; expected tickfleet.Cache(ttl=60)"),
        ({"cache": Cache(ttl=0), "effect": "read"}, "cache.ttl is 0; expected 1 to 86400 seconds"),
        ({"cache": Cache(ttl=60, per="user"), "effect": "read"}, "cache.per is 'user'; expected tenant or agent"),
        ({"approval": "finance"}, "approval is 'finance'; expected tickfleet.Approval(by=['finance'])"),
        ({"approval": Approval(by="finance")}, "approval.by is 'finance'; expected a list of texts, not one text"),
        ({"approval": Approval(by=["a b"])}, "approval.by is 'a b'; expected names of 1 to 64 characters"),
        ({"approval": Approval(quorum=0)}, "approval.quorum is 0; expected 1 to 16"),
        ({"approval": Approval(narrow=["/sum"])}, "approval.narrow is '/sum'; expected an argument: /to, /amount, /note"),
        ({"approval": Approval(expires=0)}, "approval.expires is 0; expected 1 to 2592000 seconds"),
        ({"reconcile": "find"}, "reconcile is 'find'; expected tickfleet.Reconcile("),
        ({"reconcile": Reconcile(**FOUND), "effect": "read"}, "reconcile requires the effect once"),
        ({"reconcile": Reconcile(tool="find", happened="found")}, "reconcile.happened is 'found'; expected a JSON pointer"),
        ({"reconcile": Reconcile(**FOUND, tries=21)}, "reconcile.tries is 21; expected 1 to 20"),
        ({"reconcile": Reconcile(**FOUND, arguments={"x": "/too"})}, "reconcile.arguments['x'] is '/too'; expected an"),
        ({"reconcile": Reconcile(**FOUND, arguments={"x": "$id"})}, "reconcile.arguments['x'] is '$id'; expected $call"),
        ({"reconcile": Reconcile(**FOUND, arguments={"x": {1}})}, "reconcile.arguments['x'] is {1}; expected a JSON value"),
        ({"durable": "disk"}, "durable is 'disk'; expected none, local or replica"),
        ({"version": "1.0"}, "version is '1.0'; expected a semantic version such as 1.0.0"),
        ({"timeout": 3601}, "timeout is 3601; expected more than 0 and at most 3600 seconds"),
        ({"timeout": float("nan")}, "timeout is nan; expected more than 0 and at most 3600 seconds"),
        ({"id": " "}, "id is ' '; expected a text that is not empty"),
        ({"description": 1}, "description is 1; expected a text"),
    ],
)
def test_the_error_for_an_invalid_option_names_function_and_option(options: dict[str, Any], reported: str):
    def pay(to: str, amount: int, note: str = "") -> None:
        """Pays."""

    with pytest.raises((TypeError, ValueError)) as error:
        tool(**options)(pay)
    assert str(error.value).startswith(f"pay: {reported}"), error.value
