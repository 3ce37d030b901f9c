"""The rounds of a loop whose template is leaf, one after the other on one runner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from decurion_crds.canonical import Json
from decurion_ledger import Record
from decurion_worker.context import Execution
from decurion_worker.engine.rounds import Best, Round
from decurion_worker.errors import TimedOut
from decurion_worker.failure import Failure
from decurion_worker.files import files_in
from decurion_worker.link import Done
from decurion_worker.nodes.loop import after_round
from decurion_worker.nodes.node import failure_from
from decurion_worker.records import Built, Parents, loop_failed, round_record


class RoundScope(Protocol):
    """One round: a leaf scope. `failure` says why it failed, once `run` has returned its end."""

    failure: Failure | None

    async def run(self) -> Built: ...


class MakeRound(Protocol):
    def __call__(
        self, *, path: str, input: Json, start: Parents, done: Mapping[str, Done], files: Json
    ) -> RoundScope: ...


class LoopEnd(NamedTuple):
    """The record that ends a loop, or a graph, and is not emitted yet; and why that failed."""

    built: Built
    failure: Failure | None


class _Begun(NamedTuple):
    """A round that has begun: its number, its input, the record that says so, and the best round before it."""

    number: int
    input: Json
    start: tuple[str, str]
    best: Best | None
    files: Json = None


class LeafLoop:
    """One loop. `env` is what its expressions see of their scope; `opening` and `core` are value and hash of its own
    `scope_opened`; `done` is what is committed of it, by path from the loop's own: `@002/draft`, `@002!output`.
    `left` is the rest of its time in seconds, None where it has none, or where others count it.
    """

    def __init__(
        self,
        execution: Execution,
        env: Mapping[str, Json],
        *,
        opening: Mapping[str, Json],
        core: str,
        done: Mapping[str, Done],
        make: MakeRound,
        emit: Callable[[Record], Awaitable[None]],
        envelope: Mapping[str, Json],
        left: float | None = None,
        files: Json = None,
    ) -> None:
        self._left = left
        self._files = files
        self._execution = execution
        self._env = env
        self._opening = opening
        self._start = (f"{execution.path}!open", core)
        self._done = done
        self._make = make
        self._emit = emit
        self._envelope = dict(envelope)

    async def run(self) -> LoopEnd:
        """Run what is left, in the time that is left."""
        seconds = self._execution.node.timeout_seconds
        try:
            async with asyncio.timeout(self._left):
                return await self._rounds()
        except TimeoutError:
            return await self._failed(failure_from(self._execution.path, TimedOut(self._execution.path, seconds)))

    async def _rounds(self) -> LoopEnd:
        begun = self._begun()
        while True:
            ended = await self._round(begun)
            if isinstance(ended, Failure):
                return await self._failed(ended)
            after = await after_round(self._execution, self._env, ended)
            end = (f"{self._execution.path}@{ended.number:03d}!output", ended.core)
            built = await round_record(self._execution, after, ended, start=[end], envelope=self._envelope)
            if after.input is None:
                return LoopEnd(built, after.failure)
            await self._emit(built.record)
            start = (built.record.path, built.record.core_hash)
            begun = _Begun(ended.number + 1, built.value["input"], start, after.best, files_in(built.record.envelope))

    def _begun(self) -> _Begun:
        """The latest round that has begun."""
        numbers = [int(name[1:-5]) for name in self._done if name.endswith("!open") and "/" not in name]
        if not numbers:
            return _Begun(1, self._opening["input"], self._start, None, self._files)
        mark = f"@{max(numbers):03d}!open"
        one = self._done[mark]
        start = (f"{self._execution.path}{mark}", one.core_hash)
        return _Begun(max(numbers), one.output["input"], start, self._best(one.output.get("best")), one.files)

    def _best(self, named: Mapping[str, Json] | None) -> Best | None:
        """The best round before one that is committed, whose record names it: its end is committed, too."""
        if named is None:
            return None
        end = self._done[f"@{named['round']:03d}!output"]
        return Best(named["round"], named["score"], end.output, end.core_hash, end.files)

    async def _round(self, begun: _Begun) -> Round | Failure:
        mark = f"@{begun.number:03d}"
        end = self._done.get(f"{mark}!output")
        if end is not None:
            failure, output, core, files = end.failure, end.output, end.core_hash, end.files
        else:
            path, inside = f"{self._execution.path}{mark}", f"{mark}/"
            done = {name[len(inside) :]: one for name, one in self._done.items() if name.startswith(inside)}
            scope = self._make(path=path, input=begun.input, start=[begun.start], done=done, files=begun.files)
            built = await scope.run()
            await self._emit(built.record)
            failure, output, core = scope.failure, built.value, built.record.core_hash
            files = files_in(built.record.envelope)
        if failure is not None:
            return failure
        return Round(begun.number, begun.input, output, core, begun.best, files)

    async def _failed(self, failure: Failure) -> LoopEnd:
        context = self._execution.context
        built = await loop_failed(
            context.values,
            context.run,
            self._execution.node,
            failure,
            parents=[self._start],
            path=self._execution.path,
            envelope=self._envelope,
        )
        return LoopEnd(built, failure)
