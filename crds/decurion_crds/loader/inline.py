"""Values as YAML in one line, quoted so that all readers read the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from decurion_crds.loader.scalars import SAME, go_key, go_scalar, other_reading

SIGNS = frozenset(",:?!#'{")
"""Signs of an expression for which the house style wants double quotes."""
_INSIDE = SIGNS | frozenset('}[]"')
_FIRST = frozenset("-=~&*|>%@`")
_WIDE = 1_000_000


def flow(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(str(key), key=True)}: {flow(below)}" for key, below in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return scalar(value)


def scalar(value: Any, *, key: bool = False) -> str:
    """A value that is no collection, in quotes where any reader of YAML would take it for something else."""
    if value is None or isinstance(value, bool | int | float):
        return (
            {None: "null", True: "true", False: "false"}[value]
            if value is None or isinstance(value, bool)
            else str(value)
        )
    text = str(value)
    same = go_key(text) == text if key else go_scalar(text) == text
    plain = same and other_reading(text) is SAME and text == text.strip() and text.isprintable() and text
    if plain and not _INSIDE & set(text) and text[0] not in _FIRST:
        return text
    return yaml.dump(text, default_style='"', allow_unicode=True, width=_WIDE).rstrip("\n")
