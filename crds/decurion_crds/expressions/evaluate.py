"""Evaluation of expressions, texts and code on worker processes of the interpreter.

Every call is bounded in time and memory, sees nothing but its environment, and gives the same result anywhere: clock
and randomness are decided by the caller, objects reach it as they are given.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import orjson
import pydantic_monty as monty

from decurion_crds.canonical import Json
from decurion_crds.compiled import Code, Expr, Text
from decurion_crds.expressions import session
from decurion_crds.expressions.errors import ExpressionFailed
from decurion_crds.expressions.groups import Group, make_group, read_path
from decurion_crds.expressions.jobs import CLOSED, CodeJob, GroupJob, Jobs, Outcome
from decurion_crds.expressions.lanes import CodeLane, ExpressionLane

MAX_GROUPS = 4_096


class Evaluator:
    """Evaluates on at most `processes` worker processes for expressions and as many for code.

    An async context manager for one event loop. It starts processes of about 6 MB; callers wait in a queue, of any
    length, while all are busy. A process that ends or strikes a limit is replaced.
    """

    def __init__(self, processes: int = 2, *, seconds: float = 1.0) -> None:
        """`seconds` bounds the evaluation of the expressions of one call."""
        self._processes = processes
        self._seconds = seconds
        self._pool = monty.Monty(min_processes=1, max_processes=2 * processes)
        self._groups: dict[tuple[tuple[str, str], ...], Group] = {}
        self._numbers = itertools.count()
        self._group_jobs: Jobs[GroupJob] = Jobs()
        self._code_jobs: Jobs[CodeJob] = Jobs()
        self._running: set[CodeJob] = set()
        self._lanes: list[ExpressionLane | CodeLane] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._pool.__enter__)
        for _ in range(self._processes):
            self._lanes.append(ExpressionLane(self._pool, self._group_jobs, self._deliver, seconds=self._seconds))
            self._lanes.append(CodeLane(self._pool, self._code_jobs, self._deliver))
        for lane in self._lanes:
            lane.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Fails what has not begun, ends code that runs, and waits for the processes to end."""
        left = [job.future for job in self._group_jobs.close()]
        left += [job.future for job in self._code_jobs.close()]
        _settle([(future, ExpressionFailed(CLOSED)) for future in left])
        for job in self._running:
            job.abandon()
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        for lane in self._lanes:
            lane.join()
        self._pool.__exit__(None, None, None)

    async def expressions(
        self, exprs: Mapping[str, Expr], env: Mapping[str, Json], *, seconds: float | None = None
    ) -> dict[str, Json]:
        """The values of `exprs` by name, as JSON, in the time of this evaluator or in `seconds`.

        `env` maps the names that expressions read (`input`, `nodes`, `state`, `run`, or the names of `with`) to values;
        it is read while this call runs. Raises `ExpressionFailed`, with the name of the first that failed.
        """
        values: dict[str, Json] = {}
        rest: list[tuple[str, Expr]] = []
        for name, expr in exprs.items():
            if expr.path is None:
                rest.append((name, expr))
                continue
            try:
                values[name] = read_path(expr.path, env)
            except ExpressionFailed as failed:
                raise ExpressionFailed(failed.message, name=name) from None
        if rest:
            group = self._group(rest)
            job = GroupJob(group, group.values(env), self._future(), None if seconds == self._seconds else seconds)
            self._group_jobs.put(job)
            values.update(zip(group.names, await job.future, strict=True))
            return {name: values[name] for name in exprs}
        return values

    async def code(self, code: Code, inputs: Mapping[str, Json], *, seconds: float, seed: str, clock: str) -> Json:
        """The result of `code` for `inputs` (name of `with` → value), as JSON.

        `seconds` bounds its run. `clock` (ISO 8601) and `seed` decide what it reads from clock and randomness. When the
        caller is cancelled, the process that runs the code is ended. Raises `ExpressionFailed`, and `ValueError` when
        `clock` is no time.
        """
        session.os_policy(seed, clock)
        job = CodeJob(code, dict(inputs), seconds, seed, clock, self._future(), threading.Lock())
        self._code_jobs.put(job)
        self._running.add(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            job.abandon()
            raise
        finally:
            self._running.discard(job)

    async def render(self, text: Text, env: Mapping[str, Json]) -> str:
        """`text` with its expressions in place: strings as they are, other values as compact JSON with sorted keys.

        Raises `ExpressionFailed`, also when an expression is None.
        """
        exprs = {str(i): part for i, part in enumerate(text.parts) if isinstance(part, Expr)}
        try:
            values = await self.expressions(exprs, env)
        except ExpressionFailed as failed:
            source = exprs[failed.name].src if failed.name in exprs else failed.name
            raise ExpressionFailed(failed.message, name=f"{{{{ {source} }}}}") from None
        return "".join(
            part if isinstance(part, str) else _shown(values[str(i)], part) for i, part in enumerate(text.parts)
        )

    def _group(self, exprs: Sequence[tuple[str, Expr]]) -> Group:
        key = tuple([(name, expr.py) for name, expr in exprs])
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._groups.clear()
            group = self._groups[key] = make_group(str(next(self._numbers)), exprs)
        return group

    def _future(self) -> asyncio.Future[Json]:
        if self._loop is None:
            raise RuntimeError("the evaluator is not open; use it in `async with`")
        return self._loop.create_future()

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        """Called by lanes. A loop that is closed has nobody who waits."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_settle, outcomes)


def _settle(outcomes: Sequence[Outcome]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, ExpressionFailed):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _shown(value: Json, expr: Expr) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        raise ExpressionFailed("it is None, which has no text; write `… or 'none'`", name=f"{{{{ {expr.src} }}}}")
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
