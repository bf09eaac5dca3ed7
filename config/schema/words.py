"""Building blocks of the schemas: JSON Schema, draft 7."""


def fields(required=(), **known):
    """Returns the schema of a mapping with known fields."""
    said = {"type": "object", "properties": {name.rstrip("_"): schema for name, schema in known.items()}, "additionalProperties": False}
    return said | ({"required": list(required)} if required else {})


def mapping(schema):
    """Returns the schema of a mapping from names to values of one kind."""
    return {"type": "object", "additionalProperties": schema}


def items(schema, **more):
    return {"type": "array", "items": schema, **more}


def number(least, most=None):
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


def word(*words):
    return {"enum": list(words)}


def either(*schemas):
    return {"anyOf": list(schemas)}


def listed(names, between="or"):
    """Returns the names in backticks, as in `a`, `b` or `c`."""
    *first, last = [f"`{name}`" for name in names]
    return f"{', '.join(first)} {between} {last}"


def described(text, schema, default=None):
    """Adds a description and a default to the schema of a field."""
    return schema | {"description": text} | ({} if default is None else {"default": default})


def duration(least, most):
    """Returns the schema of a duration. The bounds are only for documentation: JSON Schema cannot compare
    durations."""
    return DURATION | {"x-minimum": least, "x-maximum": most}


TEXT = {"type": "string"}
SOME_TEXT = {"type": "string", "minLength": 1}
YES_OR_NO = {"type": "boolean"}
ANYTHING = {}
TEXTS = items(TEXT)
WORDS = items(SOME_TEXT, uniqueItems=True)
DURATION = {"type": "string", "pattern": "^[0-9]+ *(ms|s|m|h|d)$"}
SIZE = {"type": "string", "pattern": "^[0-9]+ *(B|KiB|MiB|GiB)$"}
SIZE_BOUND = SIZE | {"x-minimum": "1MiB", "x-maximum": "1024GiB"}
POINTER = {"type": "string", "pattern": "^(/.*)?$"}
AMOUNT = either({"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,6})?$"})
EFFECT = word("read", "idempotent", "once")
U32 = 4_294_967_295
TIMEOUT_MS = number(1, 3_600_000)
SECRETS = mapping(
    fields(
        env=described("Environment variable that holds the secret. `{tenant}` in the name is the calling tenant.", SOME_TEXT),
        file=described("File that holds the secret. `{tenant}` in the path is the calling tenant.", SOME_TEXT),
    )
)
APPROVAL = fields(
    by=described("Roles that can approve. If missing, every approver can.", WORDS),
    quorum=described("Approvals that the call needs.", number(1, 16), default=1),
    expires=described("Time to decide. If missing, until the deadline of the turn.", DURATION),
    narrow=described("Arguments that an approver can change, as JSON pointers.", items({"type": "string", "pattern": "^/"}, minItems=1)),
)
# A field with a JSON Schema. The fields of that schema are not checked here.
SCHEMA = {"type": "object"}
