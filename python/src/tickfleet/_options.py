"""Options of :func:`tickfleet.tool` that have several parts, and the checks of all options."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

Effect = Literal["read", "idempotent", "once"]
Durability = Literal["none", "local", "replica"]
Seconds = float | timedelta
"""A number of seconds, or a timedelta."""

_DAY = 86_400
_EFFECT_WINDOW = _DAY
_EFFECT_WINDOW_MAX = 31 * _DAY
_TTL_MAX = _DAY
_EXPIRES_MAX = 30 * _DAY
_GRACE_MAX = 3_600
_TIMEOUT_MAX = 3_600
_POINTERS_MAX = 16
_QUORUM_MAX = 16
_TRIES_MAX = 20
_VERSION = re.compile(r"\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?")
_ROLE = re.compile(r"[A-Za-z0-9_.@-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class Approval:
    """Whose approval each call needs.

    Attributes:
        by: Roles that can approve. Default: every approver can.
        quorum: Approvals that a call needs, at most 16.
        expires: Time to decide in seconds, from 1 second to 30 days. Default: until the deadline of the turn.
        narrow: Arguments that an approver can change, as JSON pointers such as ``/amount``.
    """

    by: Iterable[str] = ()
    quorum: int = 1
    expires: Seconds | None = None
    narrow: Iterable[str] = ()


@dataclass(frozen=True, kw_only=True)
class Cache:
    """How long the result of a ``read`` tool is reused for equal arguments.

    Attributes:
        ttl: Time in seconds, from 1 second to 1 day.
        per: Who shares the results: all agents of a ``tenant``, or one ``agent``.
    """

    ttl: Seconds
    per: Literal["tenant", "agent"] = "tenant"


@dataclass(frozen=True, kw_only=True)
class Reconcile:
    """A lookup that resolves the unknown outcome of a ``once`` call.

    Attributes:
        tool: A tool with the effect ``read`` that looks the effect up.
        happened: JSON pointer to true or false in the output of the lookup.
        arguments: Arguments of the lookup: ``$call``, ``$idempotency_key``, JSON pointers to arguments of the call, or
            values.
        output: JSON pointer to the value that becomes the output of the call. Default: the whole output of the lookup.
        tries: Lookups before the outcome stays unknown, at most 20.
        grace: Time in seconds that a request can still be in flight, from 1 second to 1 hour.
    """

    tool: str
    happened: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    output: str | None = None
    tries: int = 5
    grace: Seconds = 60


class Checks:
    """Checks the options of one tool. Every error names the function and the option."""

    def __init__(self, tool: str, effect: Any) -> None:
        self._tool = tool
        self._effect = effect

    def refused(self, option: str, found: Any, expected: str) -> ValueError:
        """Returns the error for a value that is not allowed."""
        return ValueError(f"{self._tool}: {option} is {found!r}; expected {expected}")

    def other_type(self, option: str, found: Any, expected: str) -> TypeError:
        """Returns the error for a value of another type."""
        return TypeError(f"{self._tool}: {option} is {found!r}; expected {expected}")

    def text(self, option: str, value: Any) -> str | None:
        """Returns a text that is not blank, or None."""
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.other_type(option, value, "a text")
        if not value.strip():
            raise self.refused(option, value, "a text that is not empty")
        return value

    def boolean(self, option: str, value: Any) -> bool:
        """Returns a boolean."""
        if not isinstance(value, bool):
            raise self.other_type(option, value, "True or False")
        return value

    def words(self, option: str, words: Any) -> tuple[str, ...]:
        """Returns a list of texts."""
        if isinstance(words, str):
            raise self.refused(option, words, "a list of texts, not one text")
        if not isinstance(words, Iterable):
            raise self.other_type(option, words, "a list of texts")
        listed = tuple(words)
        for word in listed:
            if not isinstance(word, str):
                raise self.other_type(option, list(listed), "a list of texts")
        return listed

    def version(self, value: Any) -> str | None:
        """Returns a semantic version, or None."""
        version = self.text("version", value)
        if version is not None and not _VERSION.fullmatch(version):
            raise self.refused("version", version, "a semantic version such as 1.0.0")
        return version

    def effect(self) -> Effect:
        """Returns the effect."""
        if self._effect not in ("read", "idempotent", "once"):
            raise self.refused("effect", self._effect, "read, idempotent or once")
        effect: Effect = self._effect
        return effect

    def timeout(self, value: Any) -> float | None:
        """Returns the time limit in seconds, or None."""
        return None if value is None else self._seconds("timeout", value, 0, _TIMEOUT_MAX)

    def durable(self, value: Any) -> str | None:
        """Returns the durability, or None."""
        if value is None:
            return None
        if value not in ("none", "local", "replica"):
            raise self.refused("durable", value, "none, local or replica")
        return str(value)

    def cache(self, value: Any) -> dict[str, Any] | None:
        """Returns the cache for the worker, or None."""
        if value is None:
            return None
        if not isinstance(value, Cache):
            raise self.other_type("cache", value, "tickfleet.Cache(ttl=60)")
        self._requires("cache", "read")
        if value.per not in ("tenant", "agent"):
            raise self.refused("cache.per", value.per, "tenant or agent")
        return {"ttl_ms": self._ms("cache.ttl", value.ttl, 1, _TTL_MAX), "per": value.per}

    def effect_key(self, pointers: Any, window: Any, required: Iterable[str]) -> dict[str, Any] | None:
        """Returns the effect key for the worker, or None. Each argument of the key must be required."""
        if pointers is None:
            if window is not None:
                raise self.refused("effect_window", window, "an effect_key beside it")
            return None
        listed = self.words("effect_key", pointers)
        self._requires("effect_key", "once")
        if not 1 <= len(listed) <= _POINTERS_MAX or len(set(listed)) < len(listed):
            raise self.refused("effect_key", list(listed), f"1 to {_POINTERS_MAX} arguments, each once")
        names = list(required)
        for pointer in listed:
            if self._argument("effect_key", pointer) not in names:
                there = ", ".join(f"/{name}" for name in names) or "none"
                raise self.refused("effect_key", pointer, f"a required argument: {there}")
        milliseconds = self._ms("effect_window", _EFFECT_WINDOW if window is None else window, 1, _EFFECT_WINDOW_MAX)
        return {"arguments": list(listed), "window_ms": milliseconds}

    def approval(self, value: Any, parameters: Iterable[str]) -> dict[str, Any] | None:
        """Returns the approval for the worker, or None."""
        if value is None:
            return None
        if not isinstance(value, Approval):
            raise self.other_type("approval", value, "tickfleet.Approval(by=['finance'])")
        roles = self.words("approval.by", value.by)
        for role in roles:
            if not _ROLE.fullmatch(role):
                raise self.refused("approval.by", role, "names of 1 to 64 characters of A-Z a-z 0-9 _ . @ -")
        narrow = self.words("approval.narrow", value.narrow)
        if len(narrow) > _POINTERS_MAX:
            raise self.refused("approval.narrow", list(narrow), f"at most {_POINTERS_MAX} arguments")
        names = list(parameters)
        for pointer in narrow:
            if self._argument("approval.narrow", pointer) not in names:
                raise self.refused("approval.narrow", pointer, f"an argument: {', '.join(f'/{name}' for name in names)}")
        found: dict[str, Any] = {"by": sorted(set(roles)), "narrow": sorted(set(narrow))}
        found["quorum"] = self._integer("approval.quorum", value.quorum, _QUORUM_MAX)
        if value.expires is not None:
            found["expires_ms"] = self._ms("approval.expires", value.expires, 1, _EXPIRES_MAX)
        return found

    def reconcile(self, value: Any, parameters: Iterable[str]) -> dict[str, Any] | None:
        """Returns the lookup for the worker, or None."""
        if value is None:
            return None
        if not isinstance(value, Reconcile):
            raise self.other_type("reconcile", value, "tickfleet.Reconcile(tool='find_payment', happened='/found')")
        self._requires("reconcile", "once")
        if not self.text("reconcile.tool", value.tool):
            raise self.other_type("reconcile.tool", value.tool, "the name of a tool")
        for option, pointer in (("reconcile.happened", value.happened), ("reconcile.output", value.output)):
            optional = option == "reconcile.output" and pointer is None
            if not optional and not (isinstance(pointer, str) and pointer.startswith("/")):
                raise self.refused(option, pointer, "a JSON pointer into the output of the lookup, such as /found")
        names = list(parameters)
        if not isinstance(value.arguments, Mapping):
            raise self.other_type("reconcile.arguments", value.arguments, "a mapping")
        for key, argument in value.arguments.items():
            option = f"reconcile.arguments[{key!r}]"
            if not isinstance(key, str):
                raise self.other_type("reconcile.arguments", key, "names of arguments")
            if isinstance(argument, str) and argument.startswith("/") and self._argument(option, argument) not in names:
                raise self.refused(option, argument, f"an argument: {', '.join(f'/{name}' for name in names) or 'none'}")
            if isinstance(argument, str) and argument.startswith("$") and argument not in ("$call", "$idempotency_key"):
                raise self.refused(option, argument, "$call, $idempotency_key, a JSON pointer or a value")
            try:
                json.dumps(argument, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise self.refused(option, argument, f"a JSON value ({error})") from None
        return {
            "tool": value.tool,
            "arguments": dict(value.arguments),
            "happened": value.happened,
            "output": value.output,
            "tries": self._integer("reconcile.tries", value.tries, _TRIES_MAX),
            "grace_ms": self._ms("reconcile.grace", value.grace, 1, _GRACE_MAX),
        }

    def _requires(self, option: str, effect: Effect) -> None:
        if self._effect != effect:
            raise ValueError(f"{self._tool}: {option} requires the effect {effect}, and the effect is {self._effect!r}")

    def _argument(self, option: str, pointer: str) -> str:
        """Returns the argument that a JSON pointer names."""
        if not pointer.startswith("/"):
            raise self.refused(option, pointer, "JSON pointers to arguments, such as /amount")
        return pointer.split("/")[1].replace("~1", "/").replace("~0", "~")

    def _integer(self, option: str, value: Any, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.other_type(option, value, f"1 to {most}")
        if not 1 <= value <= most:
            raise self.refused(option, value, f"1 to {most}")
        return value

    def _ms(self, option: str, value: Any, least: float, most: float) -> int:
        return max(1, round(self._seconds(option, value, least, most) * 1000))

    def _seconds(self, option: str, value: Any, least: float, most: float) -> float:
        """Returns a time in seconds. A lower bound of 0 is not allowed itself."""
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
            raise self.other_type(option, value, "a number of seconds, or a timedelta")
        if not math.isfinite(seconds) or not (least <= seconds <= most and seconds > 0):
            bound = f"{least} to {most} seconds" if least else f"more than 0 and at most {most} seconds"
            raise self.refused(option, value, bound)
        return float(seconds)
