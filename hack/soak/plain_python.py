"""An evaluator without an interpreter of its own: expressions and code of graphs that we drew, run by this Python.

For soaks, where starting sessions would cost more than all the rest. What it gives is compared with the real one by
`tests/worker/test_random_graphs.py`. Never for a graph that somebody else wrote: nothing is bounded here.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import random
from collections.abc import Callable, Mapping
from types import CodeType, TracebackType
from typing import Any, Self

from decurion_crds.canonical import Json
from decurion_crds.compiled import Code, Expr
from decurion_crds.expressions import Evaluator, ExpressionFailed
from decurion_crds.expressions.groups import read_path
from decurion_crds.expressions.plain import plain
from decurion_crds.expressions.prelude import RUN
from decurion_crds.expressions.wide import PRELUDE as WIDE

KEPT = 1024
"""Expressions, and functions, that are kept compiled: more than one graph has."""


class PlainPython(Evaluator):
    """Evaluates in this process: at once, or after a pause of up to 0.1 s that `jitter` draws, so that what runs
    side by side ends in any order.
    """

    def __init__(self, processes: int = 1, *, seconds: float = 1.0, jitter: random.Random | None = None) -> None:
        self._jitter = jitter

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to end: several runners may share it."""

    async def expressions(
        self, exprs: Mapping[str, Expr], env: Mapping[str, Json], *, seconds: float | None = None
    ) -> dict[str, Json]:
        await self._pause()
        values = {}
        for name, expr in exprs.items():
            try:
                values[name] = read_path(expr.path, env) if expr.path is not None else self._value(expr.py, env)
            except ExpressionFailed as failed:
                raise ExpressionFailed(failed.message, name=name) from None
        return values

    async def code(self, code: Code, inputs: Mapping[str, Json], *, seconds: float, seed: str, clock: str) -> Json:
        await self._pause()
        function = _function(code.py)
        return _guarded(lambda: function(**inputs))

    async def _pause(self) -> None:
        if self._jitter is not None:
            await asyncio.sleep(0.1 * self._jitter.random())

    def _value(self, source: str, env: Mapping[str, Json]) -> Json:
        # Names that a comprehension reads are those of the module: one dict for both.
        return _guarded(lambda: eval(_compiled(source), {**_names(), **env}))


@functools.cache
def _names() -> dict[str, Any]:
    names: dict[str, Any] = {"__builtins__": builtins}
    exec(RUN, names)
    exec(WIDE, names)
    return names


@functools.lru_cache(KEPT)
def _compiled(source: str) -> CodeType:
    return compile(source, "expression", "eval")


@functools.lru_cache(KEPT)
def _function(source: str) -> Callable[..., Any]:
    names = dict(_names())
    exec(source, names)
    function: Callable[..., Any] = names["main"]
    return function


def _guarded(work: Callable[[], Any]) -> Json:
    try:
        return plain(work())
    except ExpressionFailed:
        raise
    except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError) as error:
        raise ExpressionFailed(f"{type(error).__name__}: {error}") from None
