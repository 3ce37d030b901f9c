"""The `finally` of scopes inside a run: of a branch of a map, of a graph, of a round of a loop.

    its nodes ──▶ !result, a failure, or broken off ──▶ /finally!open ──▶ its finally ──▶ !output

It runs when something of the scope is in the log, before whoever runs the scope goes on. Where the nodes of the whole
run are broken off, the innermost comes first, and after it what is around it: nothing but `finally` goes on then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from decurion_crds.canonical import Json
from decurion_crds.compiled import FINALLY
from decurion_ledger import Record
from decurion_worker.engine.actions import EndScope, OpenFinally, Outcome
from decurion_worker.engine.environment import channel_values
from decurion_worker.engine.files import whole
from decurion_worker.engine.parking import unpark
from decurion_worker.engine.scopes import Before, ScopeState
from decurion_worker.engine.state import EngineState, base_of
from decurion_worker.failure import Failure

if TYPE_CHECKING:
    from decurion_worker.engine.consequences import Consequences

FINAL_MARK = f"/{FINALLY}!open"
_INSIDE = f"/{FINALLY}/"


def in_finally(path: str) -> bool:
    """Whether a path lies in a `finally`."""
    return _INSIDE in f"{path}/" or FINAL_MARK in path


class Finals:
    """Works on the state of one run; what follows is for `then`."""

    def __init__(self, state: EngineState, then: Consequences) -> None:
        self._state = state
        self._then = then
        self._unwinding: _Unwinding | None = None

    def begin(self, scope: ScopeState, outcome: Outcome, failure: Failure | None) -> bool:
        """The nodes of a scope have ended: its `finally` is due. False when it has none, or has not begun."""
        if scope.scope.final is None or not scope.begun:
            return False
        scope.finishes = True
        self._state.decisions[f"{scope.path}{FINAL_MARK}"] = OpenFinally.of(scope, outcome, failure)
        return True

    def stands(self, scope: ScopeState) -> bool:
        """Whether nothing of the nodes goes on: a replay may bring more of what it thought had ended."""
        scope.finishes = scope.running == 0 or self._unwinding is not None
        return scope.finishes

    def began(self, scope: ScopeState) -> bool:
        """Something of a scope is in the log. Whether a replay thought that it had ended before: that is taken back."""
        end = f"{scope.path}!output"
        early = not scope.begun and scope.scope.final is not None and end in self._state.decisions
        if early:
            del self._state.decisions[end]
            scope.ended = False
        scope.begun = True
        return early

    def touch(self, path: str, enter: Callable[[str], object]) -> None:
        """Something that is no result is in the log at `path`: the scope that it lies in has begun."""
        if self._state.finals:
            base = base_of(path)
            enter(base)
            scope = self._state.scopes.get(base.rpartition("/")[0])
            if scope is not None and self.began(scope):
                self._then.settle(scope)

    def opened(self, scope: ScopeState, record: Record, value: Json) -> ScopeState:
        """The `finally` of a scope has begun; the scope of its nodes."""
        unpark(scope)
        self.began(scope)
        scope.finishes = True
        final = ScopeState(
            path=base_of(record.path),
            plan=self._state.plans[scope.scope.final or ""],
            input=scope.input,
            depth=scope.depth + 1,
            owner=scope.owner,
            index=scope.index,
            before=before(scope, record, value, facts=self._state.facts),
        )
        scope.final = self._state.scopes[final.path] = final
        return final

    def finished(self, final: ScopeState) -> None:
        """Nothing of a `finally` goes on: its scope ends, in failure also where only the `finally` failed."""
        assert final.before is not None
        scope, failure = final.before.scope, final.before.failure
        if final.before.outcome == "succeeded":
            failure = final.failure
        final.ended = True
        self._state.scopes.pop(final.path, None)
        unwinding = self._unwinding
        if unwinding is not None and scope.path in unwinding.left:
            unwinding.ended(scope.path, self._begin_broken)
        else:
            scope.ended = True
            self._state.decisions[f"{scope.path}!output"] = EndScope(scope, failure)

    def running(self) -> Iterator[ScopeState]:
        """The scopes of `finally` that run inside the run."""
        return (scope for scope in self._state.scopes.values() if scope.before is not None)

    # ------------------------------------------------------------------ when all nodes are broken off

    def break_off(self) -> None:
        """The nodes of the run are broken off: what is due now is decided when nobody holds any more of them."""
        state = self._state
        for key, decision in list(state.decisions.items()):
            if isinstance(decision, OpenFinally) and decision.scope is not state.root:
                del state.decisions[key]
                decision.scope.finishes = False
        self._unwinding = None

    def unwound(self, is_over: Callable[[str], bool], cut: tuple[Outcome, Failure]) -> bool:
        """Whether no `finally` inside the run is due any more, nor any work of nodes that were broken off."""
        state = self._state
        if self._unwinding is None:
            if any(is_over(task.scope) for task in state.out.values()):
                return False
            due = [scope for scope in state.scopes.values() if self._is_due(scope, is_over)]
            self._unwinding = _Unwinding({scope.path: scope for scope in due}, cut)
            self._unwinding.begin(self._begin_broken)
        return not self._unwinding.left

    def _is_due(self, scope: ScopeState, is_over: Callable[[str], bool]) -> bool:
        """Whether the `finally` of a scope that was broken off runs, or is to run."""
        if scope.before is not None or scope.ended or not is_over(scope.path):
            return False
        runs = scope.final is not None and not scope.final.ended
        if runs or self._state.form in ("Cancel", "Stop"):
            return runs and self._state.form != "Stop"
        return scope.scope.final is not None and scope.begun and scope.final is None and scope.owner is not None

    def _begin_broken(self, scope: ScopeState, cut: tuple[Outcome, Failure]) -> None:
        if scope.final is not None:
            return
        if scope.result is not None:
            self.begin(scope, "succeeded", None)
        elif scope.failure is not None:
            self.begin(scope, "failed", scope.failure)
        else:
            self.begin(scope, *cut)


class _Unwinding:
    """The scopes whose `finally` runs or is to run when the nodes of a run were broken off, from the inside out."""

    def __init__(self, due: dict[str, ScopeState], cut: tuple[Outcome, Failure]) -> None:
        self.left = due
        self._cut = cut
        self._around = {path: next((up for up in above(path) if up in due), None) for path in due}
        self._inside = dict.fromkeys(due, 0)
        for up in self._around.values():
            if up is not None:
                self._inside[up] += 1

    def begin(self, start: Callable[[ScopeState, tuple[Outcome, Failure]], None]) -> None:
        for path, inside in list(self._inside.items()):
            if inside == 0:
                start(self.left[path], self._cut)

    def ended(self, path: str, start: Callable[[ScopeState, tuple[Outcome, Failure]], None]) -> None:
        """The `finally` of one of them has ended."""
        del self.left[path]
        up = self._around[path]
        if up is not None:
            self._inside[up] -= 1
            if self._inside[up] == 0:
                start(self.left[up], self._cut)


def above(path: str) -> Iterator[str]:
    """The paths of the scopes around one, the nearest first."""
    while path:
        at = max(path.rfind(mark) for mark in "/[@#")
        path = path[: max(at, 0)]
        yield path


def before(scope: ScopeState, record: Record, value: Json, *, facts: Mapping[str, Json]) -> Before:
    """What the `finally` of a scope sees, as the record of its beginning says."""
    failed = value["failure"]
    message = record.envelope.get("message", "")
    failure = None if failed is None else Failure(failed["path"], failed["class"], failed["code"], message)
    return Before(
        scope=scope,
        core=record.core_hash,
        outcome=value["outcome"],
        failure=failure,
        facts={
            **facts,
            "outcome": str(value["outcome"]).capitalize(),
            "failure": None if failed is None else {**failed, "message": message},
        },
        outputs={name: scope.outputs.get(name) for name in scope.status},
        channels=channel_values(scope.scope, scope.writes),
        files=whole(scope),
    )
