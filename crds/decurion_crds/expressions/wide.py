"""What an expression sees of a wide list of which it wants the length and single items only.

`len(path)` and `path[3]` are written `_len(path)` and `_item(path, 3)` for the interpreter. Both take a list as it is,
or the stand-in of one that stays where it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from decurion_crds.canonical import Json

_MARK = "\0list"
"""A key that no object of a manifest, a model or the ledger can have by accident: keys hold no NUL there."""

PRELUDE = f"""
def _len(value):
    if isinstance(value, dict) and {_MARK!r} in value:
        return value[{_MARK!r}]
    return len(value)

def _item(value, index):
    if isinstance(value, dict) and {_MARK!r} in value:
        if index >= value[{_MARK!r}]:
            raise IndexError("list index out of range")
        return value[str(index)]
    return value[index]
"""


def stand_in(count: int, items: Mapping[int, Json]) -> dict[str, Json]:
    """What stands for a list of `count` items of which `items` are wanted."""
    return {_MARK: count, **{str(index): item for index, item in items.items()}}


def length_of(node: ast.AST) -> ast.expr | None:
    """What `len(…)` is asked of, or None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("len", "_len"):
        return node.args[0] if len(node.args) == 1 and not node.keywords else None
    return None


def index_of(node: ast.AST) -> tuple[ast.expr, int] | None:
    """The value and the constant index, from 0, of `value[3]`, or None."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        index = node.slice.value
        if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
            return node.value, index
    return None


def light_uses(
    uses: Iterable[tuple[tuple[str, ...], int | None, bool]],
) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Of (path, constant index or None, light) for each use of a path: the paths of which every use is light, and no
    longer or shorter path is read, with their indexes.
    """
    indexes: dict[tuple[str, ...], set[int]] = {}
    heavy: set[tuple[str, ...]] = set()
    for path, index, light in uses:
        if not light:
            heavy.add(path)
        else:
            found = indexes.setdefault(path, set())
            if index is not None:
                found.add(index)
    every = {*indexes, *heavy}
    return {
        path: tuple(sorted(found))
        for path, found in indexes.items()
        if path not in heavy and not any(_related(path, other) for other in every if other != path)
    }


def _related(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    short, long = sorted((one, other), key=len)
    return long[: len(short)] == short
