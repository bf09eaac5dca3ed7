"""The decorator that turns a function into a tool, and the registered tools."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, overload

from pydantic import BaseModel, ValidationError

from tickfleet import _json, _schema
from tickfleet._context import Context
from tickfleet._errors import DuplicateTool, ToolError
from tickfleet._image import content_blocks
from tickfleet._options import Approval, Cache, Checks, Durability, Effect, Reconcile

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: A JSON number that is not an integer.
_FRACTION = re.compile(r"\d[.eE]")
_PROBLEMS_MAX = 5

_registered: dict[str, Tool] = {}


@dataclass(frozen=True)
class Tool:
    """A function with its declaration."""

    name: str
    function: Callable[..., Any]
    effect: Effect
    timeout: float | None
    description: str
    signature: _schema.Signature
    declared: dict[str, Any]

    @property
    def is_async(self) -> bool:
        """Whether the function runs in the event loop rather than in a thread."""
        return inspect.iscoroutinefunction(self.function)

    def definition(self) -> dict[str, Any]:
        """The declaration for the worker, as JSON."""
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": self.signature.input_schema,
            "output_schema": self.signature.output_schema,
            "effect": self.effect,
            "timeout_ms": None if self.timeout is None else max(1, round(self.timeout * 1000)),
            **self.declared,
        }

    def bind(self, arguments: str | bytes, context: Context) -> dict[str, Any]:
        """Parses JSON text into the keyword arguments of the function.

        Raises:
            ToolError: The arguments are invalid; the message is for the model.
        """
        try:
            read = self._read(arguments)
        except ValidationError as error:
            raise ToolError.invalid_arguments(_in_words(error)) from None
        keywords = {name: getattr(read, field) for field, name in self.signature.parameters.items()}
        if self.signature.context is not None:
            keywords[self.signature.context] = context
        return keywords

    def _read(self, arguments: str | bytes) -> BaseModel:
        model = self.signature.arguments
        if self.signature.has_decimals and _FRACTION.search(arguments if isinstance(arguments, str) else arguments.decode()):
            # Otherwise, pydantic would parse fractions as floats, and then convert the floats to decimals.
            return model.model_validate(json.loads(arguments, parse_float=_Written))
        return model.model_validate_json(arguments)

    def dump(self, result: Any) -> str:
        """Converts the return value to JSON text: content blocks, if the value is an image or a list of texts and images.
        The worker checks the output schema.

        Raises:
            ValueError: The value has NaN or Infinity, which JSON cannot represent.
            PydanticSerializationError: Another part of the value cannot be written as JSON.
        """
        blocks = content_blocks(result)
        return _json.dump(self.signature.result, result) if blocks is None else json.dumps(blocks)


class _Written(float):
    """A float that keeps its original digits as text. Decimals are made from this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def _in_words(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    said = []
    for problem in problems[:_PROBLEMS_MAX]:
        path = ".".join(str(step) for step in problem["loc"])
        said.append(f"{path}: {problem['msg']}" if path else problem["msg"])
    more = len(problems) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


@overload
def tool(function: _Function, /) -> _Function: ...


@overload
def tool(
    *,
    effect: Effect = ...,
    timeout: float | timedelta | None = ...,
    name: str | None = ...,
    description: str | None = ...,
    id: str | None = ...,
    category: str | None = ...,
    display_name: str | None = ...,
    version: str | None = ...,
    requires_approval: bool = ...,
    approval: Approval | None = ...,
    effect_key: Iterable[str] | None = ...,
    effect_window: float | timedelta | None = ...,
    cache: Cache | None = ...,
    reconcile: Reconcile | None = ...,
    durable: Durability | None = ...,
    required_capabilities: Iterable[str] = ...,
    required_features: Iterable[str] = ...,
) -> Callable[[_Function], _Function]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect = "once",
    timeout: float | timedelta | None = None,
    name: str | None = None,
    description: str | None = None,
    id: str | None = None,
    category: str | None = None,
    display_name: str | None = None,
    version: str | None = None,
    requires_approval: bool = False,
    approval: Approval | None = None,
    effect_key: Iterable[str] | None = None,
    effect_window: float | timedelta | None = None,
    cache: Cache | None = None,
    reconcile: Reconcile | None = None,
    durable: Durability | None = None,
    required_capabilities: Iterable[str] = (),
    required_features: Iterable[str] = (),
) -> Any:
    """Declares a synchronous or asynchronous function as a tool. The function itself does not change.

    Args:
        effect: Effect of a second run. ``read`` has none and ``idempotent`` has the same effect; both are retried
            after transient failures. ``once``, the default, is not repeated if it may have taken effect.
        timeout: Time limit of one attempt in seconds, at most one hour. Default: the worker's.
        name: Name for models: letters, digits, ``_``, ``.`` and ``-``. Default: the function's name.
        description: Description for models. Default: the docstring.
        id: Stable id. Default: ``tool_`` and the name.
        category: Category. Default: ``general``.
        display_name: Name for people. Default: the name.
        version: Semantic version. Default: ``1.0.0``.
        requires_approval: Whether a person must approve each call.
        approval: Whose approval each call needs. Implies ``requires_approval``.
        effect_key: Required arguments of a ``once`` tool that identify its effect, as JSON pointers such as ``/to``. Equal
            calls of a tenant share one outcome.
        effect_window: Time in seconds after a call during which equal calls share its outcome, from 1 second to 31 days.
            Default: 1 day.
        cache: Caching of a ``read`` tool's results.
        reconcile: Lookup that resolves the unknown outcome of a ``once`` call.
        durable: Durability that Redis confirms before a call runs: ``none``, ``local`` or ``replica``. Default:
            ``worker.durable`` for ``once`` tools, and ``none`` for others.
        required_capabilities: Capabilities that the agent needs.
        required_features: Features that the tenant's plan needs.

    Raises:
        DuplicateTool: A tool of this name exists.
        TypeError: A parameter type has no JSON Schema, a model cannot call the function, or an option has the wrong
            type.
        ValueError: A value is invalid, or the docstring describes unknown parameters.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        called = _called(function, name)
        checks = Checks(called, effect)
        declared: dict[str, Any] = {
            "id": checks.text("id", id),
            "category": checks.text("category", category),
            "display_name": checks.text("display_name", display_name),
            "version": checks.version(version),
            "requires_approval": checks.boolean("requires_approval", requires_approval),
            "required_capabilities": list(checks.words("required_capabilities", required_capabilities)),
            "required_features": list(checks.words("required_features", required_features)),
        }
        # These checks precede the schemas, because a wrong type of a name or time is easier to correct.
        checks.text("name", name)
        own, texts, seconds = checks.effect(), checks.text("description", description), checks.timeout(timeout)
        signature = _schema.read(function)
        required = signature.input_schema.get("required", [])
        declared |= {
            "approval": checks.approval(approval, signature.parameters.values()),
            "effect_key": checks.effect_key(effect_key, effect_window, required),
            "cache": checks.cache(cache),
            "reconcile": checks.reconcile(reconcile, signature.parameters.values()),
            "durable": checks.durable(durable),
        }
        made = Tool(called, function, own, seconds, texts or signature.description, signature, declared)
        _check(made)
        _registered[made.name] = made
        function.__tickfleet_tool__ = made  # type: ignore[attr-defined]
        return function

    return register if function is None else register(function)


def _called(function: Any, name: Any) -> str:
    """Returns the name of a tool, also for error messages."""
    if not callable(function):
        raise TypeError(f"@tool is given {function!r}; expected a function, and options by name: @tool(name='stock')")
    return name if name and isinstance(name, str) else str(function.__name__)


def _check(made: Tool) -> None:
    if not _NAME.fullmatch(made.name):
        raise ValueError(f"{made.name!r}: a name has 1 to 64 characters of A-Z a-z 0-9 _ . -")
    if not made.description:
        raise ValueError(f"{made.name}: it has no docstring: models need a description")
    other = _registered.get(made.name)
    if other is not None:
        where = f"{other.function.__module__}.{other.function.__qualname__}"
        raise DuplicateTool(f"the name {made.name!r} is registered twice; {where} has it already")


def registered() -> list[Tool]:
    """Returns the tools of this process by name."""
    return [_registered[name] for name in sorted(_registered)]


def of(function: Callable[..., Any]) -> Tool:
    """Returns the tool of a decorated function.

    Raises:
        TypeError: The function is not a tool.
    """
    made = getattr(function, "__tickfleet_tool__", None)
    if not isinstance(made, Tool):
        raise TypeError(f"{function!r} is not a tool: decorate it with @tool")
    return made
