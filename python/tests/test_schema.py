"""Tests of the model's view of a function."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from tickfleet import Context, DuplicateTool, ToolError, tool
from tickfleet._tool import of
from tickfleet.testing import call


class Owner(BaseModel):
    name: str
    email: str | None = Field(None, description="Where to write to.")


@dataclass
class Size:
    width: int
    height: int = 1


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_common_types_have_schemas_without_titles():
    @tool(effect="read")
    def paint(
        owner: Owner,
        size: Size,
        colour: Colour,
        mode: Literal["fast", "slow"],
        tags: list[int],
        context: Context,
        note: Optional[str] = None,
        schema: dict[str, float] | None = None,
        copies: Annotated[int, Field(ge=1, le=9)] = 3,
    ) -> Size:
        """Paints."""
        raise NotImplementedError

    schema = of(paint).signature.input_schema
    assert list(schema["properties"]) == [
        "owner", "size", "colour", "mode", "tags", "note", "schema", "copies",
    ]  # fmt: skip
    assert schema["required"] == ["owner", "size", "colour", "mode", "tags"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["mode"] == {"enum": ["fast", "slow"], "type": "string"}
    assert schema["properties"]["tags"] == {"items": {"type": "integer"}, "type": "array"}
    assert schema["properties"]["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert schema["properties"]["copies"] == {"default": 3, "maximum": 9, "minimum": 1, "type": "integer"}
    assert schema["$defs"]["Owner"]["properties"]["email"]["description"] == "Where to write to."
    assert schema["$defs"]["Colour"] == {"enum": ["red", "blue"], "type": "string"}
    assert '"title"' not in str(schema)
    output = of(paint).signature.output_schema
    assert output is not None and output["properties"]["height"] == {"default": 1, "type": "integer"}


def test_look_around_works_and_the_error_for_an_invalid_pattern_names_its_parameter():
    @tool(effect="read")
    def ship(
        code: Annotated[str, Field(pattern=r"^(?!0)\d+(?<!9)$")],
        twice: Annotated[str, Field(pattern=r"^(\w+)-\1$")] = "a-a",
        plain: Annotated[str, Field(pattern=r"^[a-z]+$")] = "a",
    ) -> Annotated[str, Field(pattern=r"^(?=o)ok$")]:
        """Ships."""
        return "ok"

    properties = of(ship).signature.input_schema["properties"]
    assert properties["code"] == {"pattern": r"^(?!0)\d+(?<!9)$", "type": "string"}
    assert call(ship, {"code": "108"}) == "ok"
    for wrong in ({"code": "018"}, {"code": "19"}, {"code": "1", "twice": "a-b"}, {"code": "1", "plain": "A"}):
        with pytest.raises(ToolError, match=f"{list(wrong)[-1]}: String should match pattern"):
            call(ship, wrong)

    with pytest.raises(TypeError, match="the type of the parameter 'code' cannot be used: .*unterminated subpattern"):

        @tool
        def broken(code: Annotated[str, Field(pattern="^(a$")]) -> None:
            """Is not registered."""


def test_a_parameter_named_title_is_kept():
    @tool
    def name_it(title: str) -> None:
        """Names."""

    assert of(name_it).signature.input_schema["properties"] == {"title": {"type": "string"}}
    assert of(name_it).signature.output_schema is None, "only objects are promised"


GOOGLE = """Looks it up.

    In every shelf.

    Args:
        place: Where to
            look.
        deep (bool): Whether to dig.

    Returns:
        What was found.
    """
NUMPY = """Looks it up.

    In every shelf.

    Parameters
    ----------
    place : str
        Where to
        look.
    deep : bool
        Whether to dig.
    """
REST = """Looks it up.

    In every shelf.

    :param place: Where to
        look.
    :param deep: Whether to dig.
    :returns: What was found.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST])
def test_descriptions_come_from_every_docstring_style(text: str):
    def look(place: str, deep: bool = False) -> str:
        return place

    look.__doc__ = text
    signature = of(tool(look)).signature
    assert signature.description == "Looks it up.\n\nIn every shelf."
    assert signature.input_schema["properties"]["place"]["description"] == "Where to look."
    assert signature.input_schema["properties"]["deep"]["description"] == "Whether to dig."


def test_a_docstring_can_describe_the_context_and_several_parameters_at_once():
    @tool
    def look(x: int, y: int, context: Context) -> None:
        """Looks.

        Parameters
        ----------
        x, y : int
            The place.
        context : Context
            Nothing for models.

        Attributes
        ----------
        seen : int
            How often.

        Raises
        ------
        KeyError
            There is nothing.
        """

    properties = of(look).signature.input_schema["properties"]
    assert {name: schema.get("description") for name, schema in properties.items()} == {"x": "The place.", "y": "The place."}


def test_a_description_in_a_type_hint_overrides_the_docstring():
    @tool
    def look(place: Annotated[str, Field(description="From the hint.")]) -> None:
        """Looks.

        Args:
            place: From the docstring.
        """

    assert of(look).signature.input_schema["properties"]["place"]["description"] == "From the hint."


def test_a_duplicate_name_is_an_error():
    @tool(name="shop.stock")
    def first() -> None:
        """Counts."""

    with pytest.raises(DuplicateTool, match=r"'shop.stock' is registered twice; .*first has it already"):

        @tool(name="shop.stock")
        def second() -> None:
            """Counts."""


class Opaque:
    pass


MISSPELT = """Counts.

    Args:
        skuu: Which article.
"""


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def f(x): 'Does.'", "'x' has no type hint"),
        ("def f(*x: int): 'Does.'", "'x' is positional-only: arguments are passed by name"),
        ("def f(x: int, /): 'Does.'", "'x' is positional-only: arguments are passed by name"),
        ("def f(x: Opaque): 'Does.'", "a type has no JSON Schema"),
        ("def f(x: 'Missing'): 'Does.'", "a type hint cannot be resolved"),
        ("def f(a: Context, b: Context): 'Does.'", "more than one parameter is a Context"),
        ("def f(): pass", "it has no docstring"),
        ("async def f():\n 'Does.'\n yield 1", "^f: a tool returns one result, and this is an asynchronous generator"),
        (f"def f(sku: str): {MISSPELT!r}", "^f: its docstring describes skuu; its parameters are: sku$"),
        (f"def f(): {MISSPELT!r}", "^f: its docstring describes skuu; its parameters are: none$"),
    ],
)
def test_a_function_that_models_cannot_call_is_rejected(source: str, problem: str):
    names = {"Opaque": Opaque, "Context": Context}
    exec(source, names)
    with pytest.raises((TypeError, ValueError), match=problem):
        tool(names["f"])


@pytest.mark.parametrize(
    "options",
    [{"effect": "write"}, {"timeout": 0}, {"timeout": 3601}, {"name": "a b"}, {"required_capabilities": "talk"}],
)
def test_an_unknown_option_is_rejected(options: dict[str, object]):
    def f() -> None:
        """Does."""

    with pytest.raises(ValueError):
        tool(**options)(f)


@pytest.mark.parametrize(
    ("option", "value", "reported"),
    [
        ("name", 5, "name is 5; expected a text"),
        ("timeout", "5s", "timeout is '5s'; expected a number of seconds, or a timedelta"),
        ("timeout", True, "timeout is True; expected a number of seconds, or a timedelta"),
        ("category", ["shop"], r"category is \['shop'\]; expected a text"),
        ("display_name", b"Stock", "display_name is b'Stock'; expected a text"),
        ("version", 1.0, "version is 1.0; expected a text"),
        ("requires_approval", "yes", "requires_approval is 'yes'; expected True or False"),
        ("requires_approval", None, "requires_approval is None; expected True or False"),
        ("required_capabilities", 5, "required_capabilities is 5; expected a list of texts"),
        ("required_features", ["a", 1], r"required_features is \['a', 1\]; expected a list of texts"),
        ("effect", ["read"], r"effect is \['read'\]; expected read, idempotent or once"),
    ],
)
def test_the_error_for_an_option_of_the_wrong_type_names_tool_and_expected_type(option: str, value: object, reported: str):
    def stock() -> None:
        """Counts."""

    options: Any = {option: value}
    with pytest.raises((TypeError, ValueError), match=f"^stock: {reported}"):
        tool(**options)(stock)


def test_the_error_for_a_missing_function_explains_how_to_pass_options():
    given: Any = "stock"
    with pytest.raises(TypeError, match="@tool is given 'stock'; expected a function, and options by name"):
        tool(given)


def test_the_definition_has_the_fields_that_workers_need():
    @tool(effect="read", timeout=1.5, category="shop", required_capabilities=["sell"], requires_approval=True)
    def f() -> None:
        """Does."""

    definition = of(f).definition()
    assert (definition["name"], definition["effect"], definition["timeout_ms"]) == ("f", "read", 1500)
    assert (definition["required_capabilities"], definition["requires_approval"]) == (["sell"], True)


def test_decimals_keep_every_digit():
    @tool
    def pay_exactly(amount: Decimal, parts: list[Decimal], rate: float, count: int) -> str:
        """Pays.

        Args:
            amount: How much.
            parts: Of what.
            rate: Of exchange.
            count: How often.
        """
        return ""

    text = '{"amount": 12345678901234567890.10, "parts": [0.10, 7, "0.30"], "rate": 0.5, "count": 5}'
    bound = of(pay_exactly).bind(text, Context.__new__(Context))
    assert str(bound["amount"]) == "12345678901234567890.10"
    assert [str(part) for part in bound["parts"]] == ["0.10", "7", "0.30"]
    assert (type(bound["rate"]), bound["rate"], bound["count"]) == (float, 0.5, 5)
    with pytest.raises(ToolError, match="amount"):
        of(pay_exactly).bind(text.replace("12345678901234567890.10", '"much"'), Context.__new__(Context))
