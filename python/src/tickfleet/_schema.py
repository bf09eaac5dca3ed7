"""Derives tool declarations from functions: pydantic creates the schemas, docstring-parser reads the
descriptions."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, create_model
from pydantic_core import SchemaError

from tickfleet._context import Context

#: Keys of these members are names from the user, not keywords of JSON Schema.
_NAMED = ("properties", "$defs", "patternProperties", "dependentSchemas")
#: Values of these members are data, not schemas.
_DATA = ("default", "const", "enum", "examples", "example")
_FIELD = re.compile(r'Field "(\w+)"')


@dataclass(frozen=True)
class Signature:
    """The parameters and the result of a function."""

    description: str
    arguments: type[BaseModel]
    #: Field of :attr:`arguments` → parameter of the function.
    parameters: dict[str, str]
    context: str | None
    result: TypeAdapter[Any]
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    #: True if the arguments have decimals. Parsed as floats, they would lose some digits.
    has_decimals: bool


def read(function: Callable[..., Any]) -> Signature:
    """Reads a function's type hints and docstring.

    Raises:
        TypeError: A model cannot pass a parameter, a type has no JSON Schema, or it is an asynchronous generator.
        ValueError: The docstring describes an unknown parameter.
    """
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"{name}: a tool returns one result, and this is an asynchronous generator: collect its items and return them")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: a type hint cannot be resolved: {error}") from error
    docstring = docstring_parser.parse(inspect.getdoc(function) or "")
    described = _described(docstring)
    fields: dict[str, Any] = {}
    parameters: dict[str, str] = {}
    context = None
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        hint = _hint(name, parameter, hints)
        if _is_context(hint):
            if context is not None:
                raise TypeError(f"{name}: more than one parameter is a Context")
            context = parameter.name
            continue
        # A parameter can have a name such as `schema` or `_id`, but a field of a pydantic model cannot.
        key = f"a{len(parameters)}"
        parameters[key] = parameter.name
        fields[key] = (hint, _field(hint, parameter, described.get(parameter.name)))
    _check_names(name, described, list(signature.parameters))
    try:
        arguments = _arguments(fields)
        result = _result(hints.get("return", Any))
        input_schema = _clean(arguments.model_json_schema(by_alias=True))
        output_schema = _clean(result.json_schema(mode="serialization"))
    except PydanticUserError as error:
        raise TypeError(f"{name}: a type has no JSON Schema: {error}") from error
    except SchemaError as error:
        raise TypeError(f"{name}: {_unusable(error, parameters)}") from error
    input_schema.setdefault("properties", {})
    input_schema.pop("description", None)
    description = "\n\n".join(text for text in (docstring.short_description, docstring.long_description) if text)
    is_object = output_schema.get("type") == "object"
    return Signature(
        description,
        arguments,
        parameters,
        context,
        result,
        input_schema,
        output_schema if is_object else None,
        "'decimal'" in str(arguments.__pydantic_core_schema__),
    )


#: Patterns with look-around and back references need Python's regex engine. In this engine, `$` also matches before a
#: last line break, so pydantic's own engine is tried first.
_PYTHON_PATTERNS = ConfigDict(regex_engine="python-re")


def _arguments(fields: dict[str, Any]) -> type[BaseModel]:
    """Returns the model of the arguments."""
    try:
        return create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except SchemaError:
        return create_model("Arguments", __config__=ConfigDict(extra="forbid", regex_engine="python-re"), **fields)


def _result(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint)
    except SchemaError:
        return TypeAdapter(hint, config=_PYTHON_PATTERNS)


def _unusable(error: SchemaError, parameters: dict[str, str]) -> str:
    """Explains why pydantic cannot build a type, usually because of a pattern. Uses the parameter's own name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    field = _FIELD.search(str(error))
    where = f"the type of the parameter {parameters.get(field[1], field[1])!r}" if field else "a type"
    why = "; ".join(line for line in lines if not line.startswith(("Error building", "SchemaError: Error", "SchemaError: Field")))
    return f"{where} cannot be used: {why.removeprefix('SchemaError: ') or lines[-1]}"


def _described(docstring: docstring_parser.Docstring) -> dict[str, str]:
    """Returns the parameter descriptions of a docstring. NumPy's style can describe several parameters at once, such as
    ``x, y : float``."""
    found: dict[str, str] = {}
    for param in docstring.params:
        # The parser returns attributes in the same list as parameters.
        if param.args[0] != "attribute":
            text = " ".join((param.description or "").split())
            found |= {word.strip(): text for word in param.arg_name.split(",")}
    return found


def _check_names(name: str, described: dict[str, str], parameters: list[str]) -> None:
    """Rejects descriptions of unknown parameters: with a misspelled name, a parameter would have no description."""
    unknown = [word for word in described if word not in parameters]
    if unknown:
        there = ", ".join(parameters) or "none"
        raise ValueError(f"{name}: its docstring describes {', '.join(unknown)}; its parameters are: {there}")


def _hint(name: str, parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    """Returns the type of a parameter. Rejects parameters that cannot be passed by name."""
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise TypeError(f"{name}: the parameter {parameter.name!r} is positional-only: arguments are passed by name")
    if parameter.name not in hints:
        raise TypeError(f"{name}: the parameter {parameter.name!r} has no type hint: models need its type")
    return hints[parameter.name]


def _is_context(hint: Any) -> bool:
    """Returns true if a hint is the context, or an optional context."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_is_context(one) for one in get_args(hint))
    return isinstance(hint, type) and issubclass(hint, Context)


def _field(hint: Any, parameter: inspect.Parameter, description: str | None) -> Any:
    """Returns the field of a parameter. A description in the hint takes precedence over the docstring."""
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    says = get_origin(hint) is Annotated and any(getattr(extra, "description", None) for extra in get_args(hint)[1:])
    if says or not description:
        return Field(default, alias=parameter.name)
    return Field(default, alias=parameter.name, description=description)


def _clean(schema: Any) -> Any:
    """Returns a schema without titles, which only repeat names and cost tokens."""
    if isinstance(schema, list):
        return [_clean(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in _NAMED and isinstance(value, dict):
            cleaned[key] = {name: _clean(member) for name, member in value.items()}
        else:
            cleaned[key] = value if key in _DATA else _clean(value)
    return cleaned
