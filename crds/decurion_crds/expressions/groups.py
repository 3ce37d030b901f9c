"""Expressions that are evaluated together: their form as one function, and the part of the environment they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from decurion_crds.canonical import Json
from decurion_crds.compiled import Expr
from decurion_crds.expressions.errors import ExpressionFailed
from decurion_crds.expressions.syntax import shortest
from decurion_crds.expressions.wide import PRELUDE as WIDE_PRELUDE

Tree: TypeAlias = "dict[str, Tree]"

PRELUDE = (
    """
_functions = {}

def _run(jobs):
    return [_functions[name](*values) for name, values in jobs]

def _call(name, inputs):
    return _functions[name](**inputs)
"""
    + WIDE_PRELUDE
)
"""`_run` runs jobs of several groups. Each answers for itself: a list of values, or a tuple of what failed."""

_FAILED = """
    except Exception as _error:
        return (len(_values), type(_error).__name__, str(_error))
    return _values
_functions[{key!r}] = _group
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Expressions that need the interpreter. `roots` are the first names of what they read, `tree` the paths below
    them.
    """

    key: str
    names: tuple[str, ...]
    roots: tuple[str, ...]
    tree: Tree
    source: str

    def values(self, env: Mapping[str, Json]) -> list[Json]:
        """One value for each of `roots`, holding no more than what is read."""
        return [_pruned(env.get(root), self.tree[root]) for root in self.roots]


def make_group(key: str, exprs: Sequence[tuple[str, Expr]]) -> Group:
    tree = _tree({tuple(path.split(".")) for _, expr in exprs for path in expr.reads})
    roots = tuple(sorted(tree))
    lines = [f"def _group({', '.join(roots)}):", "    _values = []", "    try:"]
    lines += [f"        _values.append({expr.py})" for _, expr in exprs]
    source = "\n".join(lines) + _FAILED.format(key=key)
    return Group(key=key, names=tuple(name for name, _ in exprs), roots=roots, tree=tree, source=source)


def read_path(path: Sequence[str], env: Mapping[str, Json]) -> Json:
    """The value at a bare path; None where a property is absent. Raises `ExpressionFailed` below what has no fields."""
    value: Json = env.get(path[0])
    for i, key in enumerate(path[1:], 1):
        if not isinstance(value, dict):
            found = "None" if value is None else f"a {type(value).__name__}"
            raise ExpressionFailed(f"{'.'.join(path[:i])} is {found}, which has no field {key}")
        value = value.get(key)
    return value


def _tree(paths: set[tuple[str, ...]]) -> Tree:
    tree: Tree = {}
    for path in shortest(paths):
        level = tree
        for key in path:
            level = level.setdefault(key, {})
    return tree


def _pruned(value: Json, tree: Tree) -> Json:
    """`value` without the members that no path needs. Paths are shortest ones: what a path ends at is passed whole."""
    if not tree or not isinstance(value, dict):
        return value
    return {key: _pruned(value[key], below) for key, below in tree.items() if key in value}
