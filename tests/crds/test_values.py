"""Values brought to the spelling of their schema, and checked against it."""

import collections
import datetime
import decimal
import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decurion_crds.canonical import canonical
from decurion_crds.errors import InputError, OutputMismatch, SchemaRefused, ValueRefused
from decurion_crds.values import MAX_DEPTH, MAX_INTEGER, MAX_PROBLEM_CHARS, MAX_PROBLEMS, Validator, normalise

NUMBER = {"type": "number"}
INTEGER = {"type": "integer"}


def record(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (1, NUMBER, 1.0),
        (1.0, NUMBER, 1.0),
        (1.0, INTEGER, 1),
        (1.5, INTEGER, 1.5),
        (7, {}, 7),
        (7.0, {}, 7.0),
        (1, {"type": ["number", "null"]}, 1.0),
        (2.0, {"type": ["null", "integer"]}, 2),
        (1, {"type": ["integer", "number"]}, 1.0),
        (1, {"anyOf": [{"type": "string"}, NUMBER]}, 1.0),
        (1.0, {"oneOf": [{"type": "null"}, INTEGER]}, 1),
        (1, {"allOf": [{"minimum": 0}, NUMBER]}, 1.0),
        (1.0, {"enum": [1, 2]}, 1),
        (1, {"const": 1.5}, 1.0),
        (-0.0, NUMBER, 0.0),
        (-0.0, {}, 0.0),
        (True, NUMBER, True),
        (True, INTEGER, True),
        ((1, 2), {"type": "array", "items": NUMBER}, [1.0, 2.0]),
        ([1, 2, 3], {"prefixItems": [NUMBER], "items": INTEGER}, [1.0, 2, 3]),
        ({"a": 1, "b": 1}, {"properties": {"a": NUMBER}, "additionalProperties": INTEGER}, {"a": 1.0, "b": 1}),
        ({"a": {"b": [1]}}, record(a=record(b={"items": NUMBER})), {"a": {"b": [1.0]}}),
        ({"a": 1}, {"anyOf": [record(b=INTEGER), record(a=NUMBER)]}, {"a": 1.0}),
        ([1], {"anyOf": [{"type": "array", "items": NUMBER}, {"type": "null"}]}, [1.0]),
    ],
)
def test_a_number_is_spelled_as_its_schema_says(value: object, schema: dict[str, Any], expected: object) -> None:
    result = normalise(value, schema)
    assert canonical(result) == canonical(expected)
    assert repr(result) == repr(expected)


NULLABLE = {"type": ["string", "null"]}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ({"a": None}, record(a={"type": "string"}), {}),
        ({"a": None}, record(a=NULLABLE), {}),
        ({"a": None}, {}, {}),
        ({"a": None}, record("a", a=NULLABLE), {"a": None}),
        ({}, record("a", a=NULLABLE), {"a": None}),
        ({}, record("a", a={"anyOf": [{"type": "null"}, {"type": "string"}]}), {"a": None}),
        ({}, record("a", a={"enum": ["x", None]}), {"a": None}),
        ({}, record("a", a={"type": "string"}), {}),
        ({"a": None}, record("a", a={"type": "string"}), {"a": None}),
        ({}, record("a"), {}),
        ([None], {}, [None]),
        ({"a": [{"b": None}]}, {}, {"a": [{}]}),
        ({}, {"oneOf": [record("a", a=NULLABLE), record("b", b=NULLABLE)]}, {}),
        ({"a": None}, {"oneOf": [record("a", a=NULLABLE), record("b", b=NULLABLE)]}, {"a": None}),
        ({}, {"allOf": [record("a", a=NULLABLE)]}, {"a": None}),
    ],
)
def test_absent_and_null_are_one(value: object, schema: dict[str, Any], expected: object) -> None:
    assert normalise(value, schema) == expected


class Colour(enum.StrEnum):
    RED = "red"


class Count(enum.IntEnum):
    ONE = 1


def test_subclasses_become_plain_json() -> None:
    pair = collections.namedtuple("pair", "a b")(1, 2)
    value = normalise({"c": Colour.RED, "n": Count.ONE, "p": pair, "o": collections.OrderedDict(x=1)}, record(n=NUMBER))
    assert value == {"c": "red", "n": 1.0, "p": [1, 2], "o": {"x": 1}}
    assert {name: type(part) for name, part in value.items()} == {"c": str, "n": float, "o": dict, "p": list}


def test_keys_are_sorted_whatever_order_they_come_in() -> None:
    schema = record("b", a=NULLABLE, b=NULLABLE)
    assert list(normalise({"c": 1, "a": {"z": 1, "y": 2}}, schema)) == ["a", "b", "c"]
    assert list(normalise({"c": 1, "a": {"z": 1, "y": 2}})["a"]) == ["y", "z"]


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        (float("nan"), "$", "write None"),
        ({"a": [1, float("-inf")]}, "$.a[1]", "write None"),
        (MAX_INTEGER + 1, "$", "write it as a text"),
        (-MAX_INTEGER - 1, "$", "write it as a text"),
        (10**400, "$", "write it as a text"),
        ({"a": {1, 2}}, "$.a", "write sorted(x)"),
        (frozenset(), "$", "write sorted(x)"),
        ([b"x"], "$[0]", "write x.decode()"),
        (datetime.date(2026, 1, 1), "$", "write x.isoformat()"),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "$", "write x.isoformat()"),
        (decimal.Decimal(1), "$", "write float(x)"),
        (1j, "$", "return texts"),
        (object(), "$", "return texts"),
        (len, "$", "return texts"),
        ({"k-1": {"b": "x\udc00"}}, '$["k-1"].b', "half a surrogate pair"),
        ({"\ud800": 1}, "$", "half a surrogate pair"),
        ({"a": {1: 2}}, "$.a", "write str(key)"),
        ({"a": {None: 2}}, "$.a", "write str(key)"),
    ],
)
def test_what_is_no_json_is_refused_with_place_and_remedy(value: object, path: str, says: str) -> None:
    with pytest.raises(ValueRefused) as refused:
        normalise(value)
    assert refused.value.path.startswith(path)
    assert says in refused.value.message
    assert isinstance(refused.value, InputError)


def test_an_integer_that_is_too_large_is_refused_also_where_it_came_as_float() -> None:
    assert normalise(float(2**60), NUMBER) == 2.0**60
    with pytest.raises(ValueRefused):
        normalise(float(2**60), INTEGER)


def test_nesting_is_bounded_far_below_the_stack() -> None:
    def nested(levels: int) -> Any:
        value: Any = 1
        for i in range(levels):
            value = [value] if i % 2 else {"a": value}
        return value

    assert canonical(normalise(nested(MAX_DEPTH)))
    with pytest.raises(ValueRefused, match="nested deeper"):
        normalise(nested(MAX_DEPTH + 1))
    with pytest.raises(ValueRefused, match="nested deeper"):
        normalise(nested(100_000))


def test_a_value_is_never_changed_in_place() -> None:
    value = {"a": [1, {"b": None}], "c": 2}
    normalise(value, record("d", a={"items": NUMBER}, c=NUMBER, d=NULLABLE))
    assert value == {"a": [1, {"b": None}], "c": 2}


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)
_schemas = st.recursive(
    st.sampled_from([{}, NUMBER, INTEGER, NULLABLE, {"type": ["number", "null"]}, {"enum": [1, 2.5, None]}]),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(
            lambda properties, required: {"properties": properties, "required": required},
            st.dictionaries(st.sampled_from(["a", "b", "c"]), inner),
            st.lists(st.sampled_from(["a", "b", "c"]), unique=True),
        )
        | st.builds(
            lambda word, branches: {word: branches},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        )
    ),
    max_leaves=8,
)


@given(_json, _schemas)
def test_normalising_twice_is_normalising_once(value: Any, schema: Any) -> None:
    try:
        once = normalise(value, schema)
    except ValueRefused:
        return  # a whole float beyond 2^53 where an integer is due
    assert canonical(normalise(once, schema)) == canonical(once)


@given(_json, _schemas)
def test_a_valid_value_stays_valid(value: Any, schema: Any) -> None:
    """But for null at an optional member, which is dropped first: absent and null are one."""
    validator = Validator(schema)
    clean = normalise(value)
    try:
        validator.check(clean)
        spelled = normalise(clean, schema)
    except (OutputMismatch, ValueRefused):
        return
    validator.check(spelled)


@given(_json)
def test_whole_floats_and_integers_meet_in_one_spelling(value: Any) -> None:
    def other_spelling(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: other_spelling(below) for key, below in part.items()}
        if isinstance(part, list):
            return [other_spelling(below) for below in part]
        if type(part) is int:
            return float(part)
        return int(part) if type(part) is float and part.is_integer() and abs(part) <= MAX_INTEGER else part

    numbers: dict[str, Any] = {"type": "number"}
    everywhere: dict[str, Any] = dict(numbers)
    for _ in range(20):
        everywhere = numbers | {"items": everywhere, "additionalProperties": everywhere}
    assert canonical(normalise(value, everywhere)) == canonical(normalise(other_spelling(value), everywhere))


def test_a_mismatch_says_where_and_what() -> None:
    validator = Validator(record("a", "k-1", a=INTEGER, b={"items": {"enum": ["x", "y"]}}, d={"format": "date"}))
    validator.check({"a": 1, "k-1": 2})
    with pytest.raises(OutputMismatch) as refused:
        validator.check({"a": "1", "b": ["x", "z"], "d": "2026-13-45"})
    assert sorted(refused.value.problems) == [
        '$.a: "1" is not of type "integer"',
        '$.b[1]: "z" is not one of "x" or "y"',
        '$.d: "2026-13-45" is not a "date"',
        '$: "k-1" is a required property',
    ]


def test_a_mismatch_is_bounded_whatever_the_value() -> None:
    with pytest.raises(OutputMismatch) as refused:
        Validator({"items": INTEGER}).check(["x" * 100_000] * 1_000)
    assert len(refused.value.problems) == MAX_PROBLEMS
    assert all(len(problem) < MAX_PROBLEM_CHARS + 20 for problem in refused.value.problems)
    assert refused.value.problems[0].endswith('is not of type "integer"')


@pytest.mark.parametrize(
    "schema", [{"type": "strin"}, {"$ref": "https://example.test/x"}, {"pattern": "(?=a)"}, {"properties": {"a": 5}}]
)
def test_a_schema_that_is_invalid_or_reaches_outside_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaRefused):
        Validator(schema)
