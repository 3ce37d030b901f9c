"""An evaluator without an interpreter of its own: expressions and code of graphs that we drew, run by this Python.

For soaks, where starting sessions would cost more than all the rest. What it gives is compared with the real one by
`tests/worker/test_random_graphs.py`. Never for a graph that somebody else wrote: nothing is bounded here.
"""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import Mapping
from types import CodeType, TracebackType
from typing import Any, Self

from decurion_crds.canonical import Json
from decurion_crds.compiled import Code, Expr
from decurion_crds.expressions import Evaluator, ExpressionFailed
from decurion_crds.expressions.groups import read_path
from decurion_crds.expressions.plain import plain
from decurion_crds.expressions.prelude import RUN
from decurion_crds.expressions.wide import PRELUDE as WIDE


class PlainPython(Evaluator):
    """Evaluates in this process: at once, or after a pause of up to 0.1 s that `jitter` draws, so that what runs
    side by side ends in any order.
    """

    def __init__(self, processes: int = 1, *, seconds: float = 1.0, jitter: random.Random | None = None) -> None:
        self._jitter = jitter
        self._names: dict[str, Any] = {"__builtins__": builtins}
        exec(RUN, self._names)
        exec(WIDE, self._names)
        self._expressions: dict[str, CodeType] = {}
        self._functions: dict[str, Any] = {}

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
        function = self._functions.get(code.py)
        if function is None:
            names = dict(self._names)
            exec(code.py, names)
            function = self._functions[code.py] = names["main"]
        return _guarded(lambda: function(**inputs))

    async def _pause(self) -> None:
        if self._jitter is not None:
            await asyncio.sleep(0.1 * self._jitter.random())

    def _value(self, source: str, env: Mapping[str, Json]) -> Json:
        compiled = self._expressions.get(source)
        if compiled is None:
            compiled = self._expressions[source] = compile(source, "expression", "eval")
        # Names that a comprehension reads are those of the module: one dict for both.
        return _guarded(lambda: eval(compiled, {**self._names, **env}))


def _guarded(work: Any) -> Json:
    try:
        return plain(work())
    except ExpressionFailed:
        raise
    except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError) as error:
        raise ExpressionFailed(f"{type(error).__name__}: {error}") from None
