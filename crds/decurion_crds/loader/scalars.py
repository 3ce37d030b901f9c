"""What a plain word of YAML is: as kubectl reads it, and as other readers do.

kubectl reads YAML with go-yaml 2 (YAML 1.1 with exceptions), turns it into JSON with `encoding/json`, and reads that
as int64 where it can. `go_scalar` is that whole way; the source is `resolve.go` of go.yaml.in/yaml/v2 and `yaml.go` of
sigs.k8s.io/yaml.
"""

from __future__ import annotations

import decimal
import functools
import math
import re
import struct

import yaml

Scalar = str | int | float | bool | None

_WORDS: dict[str, bool | float | None] = (
    dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True)
    | dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False)
    | dict.fromkeys(["", "~", "null", "Null", "NULL"])
    | dict.fromkeys([".nan", ".NaN", ".NAN"], math.nan)
    | dict.fromkeys([".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"], math.inf)
    | dict.fromkeys(["-.inf", "-.Inf", "-.INF"], -math.inf)
)
_STARTS = frozenset("+-0123456789.yYnNtTfFoO~")
_INTEGER = re.compile(r"[-+]?(?:0[xX](?P<x>[0-9a-fA-F]+)|0[bB](?P<b>[01]+)|0[oO]?(?P<o>[0-7]+)|(?P<d>0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_GO_FRACTION = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?")
_CORE_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_BASES = {"x": 16, "b": 2, "o": 8, "d": 10}
_INT64, _UINT64 = 2**63, 2**64
_LONGEST_INTEGER = 1_000
"""Digits of what is tried as an integer; leading zeros aside, one of 64 bits has at most 66."""


def go_scalar(text: str) -> Scalar:
    """The JSON value that kubectl sends for the plain word `text`. NaN and infinities are returned as such: JSON has
    none.
    """
    value = _go_yaml(text)
    if isinstance(value, float) and math.isfinite(value):
        return _through_json(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -_INT64 <= value < _INT64:
        return float(value)
    return value


def go_key(text: str) -> str | None:
    """The key that kubectl makes of the plain word `text`; None when it refuses it (null)."""
    value = _go_yaml(text)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _go_float_key(value)
    return None if value is None or value >= _INT64 else str(value)


@functools.lru_cache(maxsize=4096)
def other_reading(text: str) -> Scalar | object:
    """A reading of the plain word `text` by PyYAML or by YAML 1.2 that is another value than kubectl's; else `SAME`."""
    if not text or text[0] not in _STARTS or len(text) > 64:
        return SAME
    mine = _go_yaml(text)
    for reading in (_py_yaml(text), _core_schema(text)):
        if not _equal(mine, reading):
            return reading
    return SAME


SAME = object()
"""Returned by `other_reading` where all readers agree."""


def _go_yaml(text: str) -> Scalar:
    if text and text[0] not in _STARTS:
        return text
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if first == ".":
        return _go_float(text) if _GO_FRACTION.fullmatch(text) else text
    if first not in "+-0123456789":
        return text
    plain = text.replace("_", "")
    match = _INTEGER.fullmatch(plain)
    if match and len(plain) < _LONGEST_INTEGER:
        base = match.lastgroup or "d"
        value = int(match[base], _BASES[base]) * (-1 if plain[0] == "-" else 1)
        if -_INT64 <= value < _INT64 or (plain[0] not in "+-" and value < _UINT64):
            return value
    if _FLOAT.fullmatch(plain):
        value_or_text = _go_float(plain)
        return text if isinstance(value_or_text, str) else value_or_text
    return text


def _go_float(text: str) -> float | str:
    """Out of range is an error in Go, which leaves the text as it is."""
    value = float(text)
    return text if math.isinf(value) else value


def _through_json(value: float) -> int | float:
    """Go writes a whole number in its shortest digits, and reads what is then without point and exponent as int64."""
    if not value.is_integer():
        return value
    written = int(decimal.Decimal(repr(value)))
    return written if -_INT64 <= written < _INT64 else value


def _go_float_key(value: float) -> str:
    """`strconv.FormatFloat(value, 'g', -1, 32)`, as sigs.k8s.io/yaml writes a key."""
    value = _float32(value)
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else "-.inf" if value < 0 else ".inf"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return f"{sign}0"
    shown = next(text for text in (f"{abs(value):.{n}e}" for n in range(17)) if _float32(float(text)) == abs(value))
    mantissa, _, power = shown.partition("e")
    digits, exponent = mantissa.replace(".", ""), int(power)
    if not -4 <= exponent < 6:
        point = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{point}e{exponent:+03d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, rest = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{whole}.{rest}" if rest else f"{sign}{whole}"


def _float32(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _py_yaml(text: str) -> object:
    loader = yaml.SafeLoader("")
    node = yaml.ScalarNode(loader.resolve(yaml.ScalarNode, text, (True, False)), text)  # type: ignore[no-untyped-call]
    if node.tag in ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"):
        return text
    try:
        value: object = loader.construct_object(node)
    except ValueError:
        return text
    return value


def _core_schema(text: str) -> Scalar:
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text[0] in "tT"
    if _CORE_INTEGER.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    return _WORDS[text] if text in _WORDS and isinstance(_WORDS[text], float) else text


def _equal(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or (one != one and other != other)
    return type(one) is type(other) and one == other
