"""What follows from what happened: nodes that become ready, scopes that end, the close of the run."""

from __future__ import annotations

from decurion_ledger import Record
from decurion_worker.engine.actions import EndScope, Join
from decurion_worker.engine.budgets import Budgets
from decurion_worker.engine.ending import FINAL_OPEN, Ending
from decurion_worker.engine.finals import FINAL_MARK, Finals, in_finally
from decurion_worker.engine.opened import Opened, timed_out
from decurion_worker.engine.parking import park
from decurion_worker.engine.races import Races
from decurion_worker.engine.scopes import ABANDONED, NodeStatus, RunTime, ScopeState
from decurion_worker.engine.state import EngineState
from decurion_worker.engine.tasks import key_of
from decurion_worker.failure import Failure


class Consequences:
    """Works on the state of one run, after each record and each task that was given back."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self.finals = Finals(state, self)
        self.ending = Ending(state, self.finals)
        self.races = Races(state, self)
        self.budgets = Budgets(state, self)

    def start(self, scope: ScopeState) -> None:
        for name, waits in scope.waits.items():
            if waits == 0:
                self.ready(scope, name)
        self.settle(scope)

    def enter(self, home: Opened, index: int) -> None:
        """Open a branch that has a map inside: the driver hands out its nodes one by one."""
        scope = self.scope_of(home, index)
        home.scopes[index] = scope
        self._state.scopes[scope.path] = scope
        self.start(scope)

    def ready(self, scope: ScopeState, name: str) -> None:
        if name in scope.lost:
            return
        scope.status[name] = NodeStatus.READY
        if name in scope.plan.joins:
            self.races.fail_or_push(scope, name)
        else:
            self._state.offers.push(scope, "node", name)

    def end_node(
        self, scope: ScopeState, name: str, status: NodeStatus, record: Record, failure: Failure | None
    ) -> None:
        scope.status[name] = status
        scope.cores[name] = (record.path, record.core_hash)
        scope.left -= 1
        racing = scope.plan.racing.get(name)
        if failure is not None and racing is None:
            scope.failures[name] = failure
            if scope.before is not None:
                self._pass_over(scope, name)
            else:
                if failure.code != ABANDONED:
                    self._reopen(scope)
                scope.keep()
                self.halt(scope)
        else:
            if scope.failures:
                scope.keep()
            if racing is not None:
                self.races.ended(scope, name, failure)
            for follower in scope.plan.followers[name]:
                if follower != racing:
                    scope.waits[follower] -= 1
                    if scope.waits[follower] == 0:
                        self.ready(scope, follower)
        self.settle(scope)
        self.ending.settle()

    def _reopen(self, scope: ScopeState) -> None:
        """A cause has come to light in a scope. A replay, which knows nothing of what was in work, may have thought
        that the scope had ended with another: that is taken back, unless it is in the log.
        """
        decisions = self._state.decisions
        if scope.owner is None:
            early = [key for key in ("close", FINAL_OPEN) if self.ending.natural() and key in decisions]
        else:
            early = [key for key in (f"{scope.path}!output", f"{scope.path}{FINAL_MARK}") if key in decisions]
        for key in early:
            del decisions[key]
            scope.ended = scope.finishes = False

    def _pass_over(self, scope: ScopeState, name: str) -> None:
        """What comes after a node of `finally` that failed never runs; the rest does."""
        for follower in scope.plan.followers[name]:
            if scope.status[follower] is NodeStatus.WAITING:
                scope.status[follower] = NodeStatus.NOT_RUN
                scope.left -= 1
                self._pass_over(scope, follower)

    def halt(self, scope: ScopeState) -> None:
        """Nothing new starts in this scope or below it, but for what is kept: end what has nothing running, from the
        inside out.
        """
        for name in [name for name in scope.asked if scope.halts(name)]:
            self._state.approvals.drop(scope.asked.pop(name).path)
        calls = [call for calls in scope.calling.values() for call in calls.values()]
        for opened in [*scope.opened.values(), *calls]:
            if opened.path in self._state.opened and scope.halts(opened.node.name):
                self.halt_opened(opened)
        self.settle(scope)

    def halt_opened(self, opened: Opened) -> None:
        for inner in list(opened.scopes.values()):
            self.halt(inner)
        self.settle_opened(opened)

    def time_out(self, opened: Opened) -> None:
        opened.timed_out = True
        self.halt_opened(opened)
        self.abandon(opened)

    def abandon(self, home: Opened) -> None:
        """Nobody needs what runs of a map or graph that failed: it ends as soon as that is given back."""
        under = tuple(f"{home.path}{mark}" for mark in "[/!@")
        self._state.abandoned += [
            key
            for key in self._state.out
            if key == home.path or (key.startswith(under) and not in_finally(key[len(home.path) :]))
        ]

    def settle(self, scope: ScopeState) -> None:
        """End a scope in which nothing can happen any more."""
        if scope.ended or self._state.closed is not None or self.ending.is_over(scope.path):
            return
        if scope.before is not None:
            if scope.left > 0:
                self._rest(scope)
            elif scope is self._state.final:
                self.ending.finished(scope)
            else:
                self.finals.finished(scope)
            return
        if scope.finishes:
            return
        if scope.halted:
            if scope.running == 0:
                failure = why(scope)
                if scope.owner is None:
                    scope.ended = True
                    self.ending.nodes_ended("failed", failure)
                elif not self.finals.begin(scope, "failed", failure):
                    scope.ended = True
                    self._state.decisions[f"{scope.path}!output"] = EndScope(scope, failure)
        elif scope.left == 0 and not scope.finishing:
            scope.finishing = True
            self._state.offers.push(scope, "output" if scope.scope.final is None else "result", "")
        else:
            self._rest(scope)

    def _rest(self, scope: ScopeState) -> None:
        """Park a scope that waits for people alone: its maps go on with others."""
        for opened in park(scope):
            self._state.offers.offer(opened)
            self._release(opened)

    def _release(self, opened: Opened) -> None:
        """Offer what was decided and waits for room in its map, as far as there is room now: of each branch all."""
        room = opened.room
        while room > 0 and opened.held:
            tasks = opened.held.pop(next(iter(opened.held)))
            waiting = [
                (kind, scope, name) for kind, path, name in tasks if (scope := self._state.scopes.get(path)) is not None
            ]
            for kind, scope, name in waiting:
                self._state.offers.push(scope, kind, name)
            room -= bool(waiting)

    def make_room(self, scope: ScopeState) -> None:
        """What was to go on in a scope does not: others of the maps around may."""
        owner = scope.owner
        while owner is not None:
            self.settle_opened(owner)
            owner = owner.home.owner

    def settle_opened(self, opened: Opened) -> None:
        state, over = self._state, self.ending.is_over(opened.path)
        self._release(opened)
        if opened.startable and opened.path in state.opened:
            state.offers.offer(opened)
        if opened.rests:
            self._rest(opened.home)
        if not over and opened.path in state.opened and not opened.joined and opened.complete:
            if opened.node.loop is not None:
                if self.round_key(opened) not in state.out:
                    opened.joined = True
                    state.decisions[f"{opened.path}!join"] = Join(opened)
            elif opened.single:
                if opened.ended == 0:
                    opened.joined = True
                    scope = self.scope_of(opened, 0)
                    self._state.decisions[f"{opened.path}!output"] = EndScope(scope, why(scope))
            elif opened.wide and not opened.stopped:
                if not opened.joining:
                    opened.joining = True
                    self._state.offers.push(opened.home, "join", opened.node.name)
            elif f"{opened.path}!join" not in self._state.out:
                opened.joined = True
                self._state.decisions[f"{opened.path}!join"] = Join(opened)
        self.ending.settle()

    @staticmethod
    def round_key(opened: Opened) -> str:
        """The key of the task that says what comes after the round of a loop."""
        return key_of(opened.home, "round", opened.node.name)

    def scope_of(self, home: Opened, index: int) -> ScopeState:
        limits = home.body.scope.limits
        # The time of a graph, or of a call, is that of what opened it.
        timed = limits is not None and limits.seconds is not None and home.node.graph is None and not home.tool
        return ScopeState(
            path=home.branch_path(index),
            plan=home.body,
            input=home.branch_input(index),
            depth=home.depth,
            owner=home,
            index=index,
            base_files=home.files,
            time=RunTime(limits.seconds, path=home.branch_path(index)) if timed and limits is not None else None,
        )


def why(scope: ScopeState) -> Failure:
    """Why a scope ends in failure: its time was up, something in it failed, or something around it did."""
    owner = scope.owner
    if owner is not None and owner.single and owner.spent is not None:
        return owner.spent
    if owner is not None and owner.single and owner.timed_out:
        return timed_out(owner)
    return scope.failure or Failure(scope.path, "Terminal", ABANDONED, "what it belongs to failed")
