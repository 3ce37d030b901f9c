"""Results of the interpreter as JSON, and its failures as sentences."""

from __future__ import annotations

import re

from decurion_crds.canonical import Json
from decurion_crds.expressions.errors import ExpressionFailed
from decurion_crds.values import MAX_DEPTH, MAX_INTEGER

_INSTEAD = {
    "set": "a set has no order; write sorted(…)",
    "frozenset": "a frozenset has no order; write sorted(…)",
    "bytes": "bytes are no JSON value; write .decode()",
    "date": "a date is no JSON value; write .isoformat()",
    "datetime": "a datetime is no JSON value; write .isoformat()",
    "time": "a time is no JSON value; write .isoformat()",
    "timedelta": "a timedelta is no JSON value; write .total_seconds()",
    "Decimal": "a Decimal is no JSON value; write float(…) or str(…)",
    "complex": "a complex number is no JSON value; write its parts",
    "range": "a range is no JSON value; write list(…)",
}
_NO_FIELDS = re.compile(r"^AttributeError: '(\w+)' object has no attribute 'get'$")


def plain(value: object, depth: int = 0) -> Json:
    """`value` as JSON: tuples become lists. Raises `ExpressionFailed` for what JSON does not have, and for nesting
    deeper than values may have, which is also how a value that contains itself ends.
    """
    if depth > MAX_DEPTH:
        raise ExpressionFailed(f"the result is nested deeper than {MAX_DEPTH} levels; flatten it")
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return value
    if kind is int:
        if -MAX_INTEGER <= value <= MAX_INTEGER:  # type: ignore[operator]
            return value
        raise ExpressionFailed("the result holds an integer beyond ±(2^53 − 1); write str(…)")
    if kind is float:
        if value - value == 0:  # type: ignore[operator]
            return value
        raise ExpressionFailed(
            f"the result holds {value}, which is no JSON number; write one, or None where that may stand"
        )
    if kind is list or kind is tuple:
        return [plain(item, depth + 1) for item in value]  # type: ignore[attr-defined]
    if kind is dict:
        return _object(value, depth + 1)  # type: ignore[arg-type]
    name = kind.__name__
    hint = _INSTEAD.get(name, f"{name} is no JSON value; write a dict, a list, a string or a number")
    raise ExpressionFailed(f"the result holds what JSON does not have: {hint}")


def _object(value: dict[object, object], depth: int) -> Json:
    for key in value:
        if type(key) is not str:
            raise ExpressionFailed(f"the result holds the key {key!r}, and keys are strings; write str(…)")
    return {key: plain(item, depth) for key, item in value.items()}


def reason(message: str, *, seconds: float, memory: int) -> str:
    """A sentence for what the interpreter says, such as `TimeoutError: feed time limit exceeded: …`."""
    if message.startswith("TimeoutError: feed time limit"):
        return f"it ran longer than {seconds:g} s"
    if message.startswith("MemoryError: memory limit"):
        return f"it needed more than {memory // 2**20} MiB"
    match = _NO_FIELDS.match(message)
    if match:
        found = {"NoneType": "None", "str": "a string", "list": "a list"}.get(match[1], match[1])
        return f"it reads a field of {found}, which has none"
    return message[:1000]
