"""Races: nodes that begin when some of what they wait for has ended well (`join: any | quorum`).

    racers end ──▶ enough ended well ──▶ race_won ──▶ the rest is given up: a `skip` each ──▶ the node runs
               └─▶ all, and too few well ──▶ the node fails, or is skipped where no racer failed

Who wins follows from the order of the log: the first that end well. What runs when that is recorded depends on time,
so the record names those that are given up, and a replay follows it. The winners stand before it is written: a racer
that ends well after them leaves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from decurion_ledger import Record
from decurion_worker.engine.actions import GiveUp, RaceLost, RaceWon
from decurion_worker.engine.opened import Opened
from decurion_worker.engine.scopes import NodeStatus, ScopeState
from decurion_worker.engine.state import EngineState
from decurion_worker.errors import LogCorrupt, TooFewEndedWell
from decurion_worker.failure import Failure

if TYPE_CHECKING:
    from decurion_worker.engine.consequences import Consequences

UNDER = ("[", "/", "!", "@", "#")
"""What may follow a node's path in that of something which belongs to it."""
OWN = ("!writes", "!otherwise", "!race")
"""What may follow it in keys of tasks and decisions of a node that opened nothing."""


class Races:
    """Works on the state of one run; what follows from races is for `then`."""

    def __init__(self, state: EngineState, then: Consequences) -> None:
        self._state = state
        self._then = then

    def ended(self, scope: ScopeState, name: str, failure: Failure | None) -> None:
        """A node that races has ended."""
        judge = scope.plan.racing[name]
        race, rule = scope.races[judge], scope.plan.joins[judge]
        if judge in scope.lost:
            return
        if scope.status[name] is not NodeStatus.OK:
            race.out[name] = failure
            if failure is not None:
                scope.outputs[name] = None
        elif len(race.winners) == rule.count:
            _discard(scope, name)
        else:
            race.winners.append(name)
            if len(race.winners) == rule.count:
                self._state.decisions[key_of(scope, judge)] = RaceWon(scope, judge)
        if len(race.winners) < rule.count and len(race.winners) + len(race.out) == len(rule.racers):
            # Only now: what the node reads of a race that nobody won must not depend on time.
            race.over = True
            self._release(scope, judge)

    def won(self, record: Record) -> None:
        """A race was won: what its record names is given up. Raises `LogCorrupt` for other winners than there are."""
        place, _, name = record.path.rpartition("/")
        self._state.decisions.pop(f"{record.path}!race", None)
        scope = self._state.scopes.get(place)
        if scope is None or not stands(scope, name) or self._then.ending.is_over(place):
            return
        if record.envelope["winners"] != scope.races[name].winners:
            raise LogCorrupt(record.path, "the record of its race names other winners than ended first")
        scope.races[name].over = True
        for lost in record.envelope["lost"]:
            self._give_up(scope, lost)
        self._release(scope, name)
        self._then.settle(scope)
        self._then.ending.settle()

    def fail_or_push(self, scope: ScopeState, name: str) -> None:
        """A node is due whose race is over."""
        race, rule, node = scope.races[name], scope.plan.joins[name], scope.scope.by_name[name]
        if len(race.winners) < rule.count and race.failed and not scope.not_chosen(node):
            self._state.decisions[f"{scope.path}/{name}"] = RaceLost(scope, name)
        else:
            self._state.offers.push(scope, "node", name)

    def _release(self, scope: ScopeState, name: str) -> None:
        """The race is over: the node waits for the others that it comes after, if for anything."""
        scope.waits[name] -= 1
        if scope.waits[name] == 0 and not scope.status[name].terminal:
            self._then.ready(scope, name)

    # ------------------------------------------------------------------ giving up

    def _give_up(self, scope: ScopeState, name: str) -> None:
        """Nothing more happens of a node that has not ended, nor below it."""
        if scope.status[name].terminal or name in scope.lost:
            return
        path = f"{scope.path}/{name}"
        scope.lost.add(name)
        scope.outputs[name] = None
        self.stop(scope, name)
        asked = scope.asked.pop(name, None)
        if asked is not None:
            self._state.approvals.drop(asked.path)
        lost = GiveUp(scope, name, f"{path}!otherwise" if path in self._state.results else path)
        self._state.decisions[lost.path] = lost

    def stop(self, scope: ScopeState, name: str) -> None:
        """Nothing that a node began goes on, nor below it; whoever works on that is told."""
        path, opens = f"{scope.path}/{name}", name in scope.opened or name in scope.calling
        self._forget_work(scope, path, opens=opens)
        if opens:
            self._forget_below(scope, name)
        scope.calling.pop(name, None)
        for key in _at(self._state.decisions, path, opens=opens):
            del self._state.decisions[key]

    def _forget_work(self, scope: ScopeState, path: str, *, opens: bool) -> None:
        state = self._state
        for key in _at(state.out, path, opens=opens):
            task = state.out.pop(key)
            state.abandoned.append(key)
            if task.scope == scope.path:
                scope.running -= 1

    def _forget_below(self, scope: ScopeState, name: str) -> None:
        """What a node opened goes on no more. Its results stand until the record that the node was given up."""
        state = self._state
        stopped = state.given_up.setdefault(f"{scope.path}/{name}", [])
        for opened in [opened for opened in _below(scope, name) if opened.path in state.opened]:
            del state.opened[opened.path]
            state.offers.withdraw(opened)
            opened.joined = True
            stopped.append(opened)
            if opened.home is scope:
                scope.running -= 1
            for inner in opened.scopes.values():
                state.scopes.pop(inner.path, None)
                inner.ended = True
                for lost in inner.lost:
                    stopped += state.given_up.pop(f"{inner.path}/{lost}", [])
                for asked in inner.asked.values():
                    state.approvals.drop(asked.path)

    def given_up(self, base: str) -> None:
        """The record that says that a node was given up: what was below it does not count."""
        for opened in self._state.given_up.pop(base, []):
            if not opened.single:
                for index in {*opened.partial, *opened.scopes}:
                    self._state.results.drop(opened.branch_path(index))
            opened.forget()


def losers(scope: ScopeState, name: str) -> list[str]:
    """Who is given up when the race of a node is won, in file order: the racers that have not ended, and before these
    what nothing else needs.
    """
    racers, winners = scope.plan.joins[name].racers, scope.races[name].winners
    found = {racer for racer in racers if racer not in winners and not scope.status[racer].terminal}
    needed = {read.split(".")[1] for read in scope.plan.output_reads if read.startswith("nodes.")}
    for other in reversed(scope.scope.order):
        node, followers = scope.scope.by_name[other], scope.plan.followers[other]
        idle = followers and all(one in found or one in scope.lost for one in followers)
        if idle and not (node.writes or other in needed or scope.status[other].terminal or other in scope.lost):
            found.add(other)
    return [node.name for node in scope.scope.nodes if node.name in found and node.name not in scope.lost]


def stands(scope: ScopeState, name: str) -> bool:
    """Whether a race that has its winners is still to be recorded."""
    return not (scope.halted or scope.ended or name in scope.lost or scope.races[name].over)


def apart(races: Mapping[str, RaceWon]) -> dict[str, RaceWon]:
    """Of races that were won, by key, those of which none can give up another: one of each scope, all as deep as the
    first.
    """
    depth = next(iter(races.values())).scope.depth
    by_scope: dict[str, str] = {}
    for key, race in races.items():
        if race.scope.depth == depth:
            by_scope.setdefault(race.scope.path, key)
    return {key: races[key] for key in by_scope.values()}


def why_lost(scope: ScopeState, name: str) -> Failure:
    """Why the node of a race fails. Of the racers that failed, the first in file order is named: which came first
    depends on time.
    """
    rule, race = scope.plan.joins[name], scope.races[name]
    first = next(failure for racer in rule.racers if (failure := race.out.get(racer)) is not None)
    error = TooFewEndedWell(f"{scope.path}/{name}", rule.count, len(rule.racers), first.path, first.message)
    return Failure(error.path, error.klass, error.code, str(error))


def key_of(scope: ScopeState, name: str) -> str:
    return f"{scope.path}/{name}!race"


def _discard(scope: ScopeState, name: str) -> None:
    """A racer ended well after the winners: it leaves nothing."""
    scope.status[name] = NodeStatus.SKIPPED
    scope.outputs[name] = None
    for written in scope.writes.values():
        written.pop(name, None)


def _below(scope: ScopeState, name: str) -> Iterator[Opened]:
    """What a node opened, and all that was opened inside."""
    opened = [scope.opened[name]] if name in scope.opened else []
    for one in (*opened, *scope.calling.get(name, {}).values()):
        yield one
        for inner in one.scopes.values():
            for below in {*inner.opened, *inner.calling}:
                yield from _below(inner, below)


def _at(keys: Collection[str], path: str, *, opens: bool) -> list[str]:
    """The keys of a node that may have opened something. Of one that has not there are few: none is searched for among
    those of all branches of a map.
    """
    if opens:
        return [key for key in keys if _is_at(key, path)]
    return [key for key in (path, *(f"{path}{mark}" for mark in OWN)) if key in keys]


def _is_at(path: str, base: str) -> bool:
    """Whether a path is `base`, or of something that belongs to it."""
    return path.startswith(base) and (len(path) == len(base) or path[len(base)] in UNDER)
