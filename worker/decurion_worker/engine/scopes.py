"""Scopes that are driven node by node, and what is known of their nodes.

Pure data with the bookkeeping that belongs to it. What may happen next is the engine's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from decurion_crds.canonical import Json
from decurion_crds.compiled import Node, Scope
from decurion_ledger import Record
from decurion_worker.engine.approvals import Asked
from decurion_worker.engine.causes import NOBODY, still_due
from decurion_worker.failure import Failure

if TYPE_CHECKING:
    from decurion_worker.engine.opened import Opened, RoundEnd

ABANDONED = "Abandoned"
"""The code of what was given up since what it belongs to failed."""


class NodeStatus(IntEnum):
    WAITING = 0
    READY = 1
    OPEN = 2
    """Its own work is over, but not the node: branches or a graph run, or what follows from its failure. Or it is an
    agent that waits for graphs which are its tools.
    """
    OK = 3
    SKIPPED = 4
    FAILED = 5
    NOT_RUN = 6
    """Of `finally`: what it comes after has failed."""

    @property
    def terminal(self) -> bool:
        return self >= NodeStatus.OK


@dataclass(slots=True)
class RunTime:
    """The time of the whole run, or of a scope in it, if it has one."""

    seconds: float | None
    due: str | None = None
    path: str = "/"


@dataclass(frozen=True, slots=True)
class Before:
    """What a `finally` sees of the nodes that have ended: the core hash of its opening, `run`, outputs, channels.

    `scope` is that of the nodes, which ended as `outcome` and `failure` say.
    """

    scope: ScopeState
    core: str
    outcome: str
    failure: Failure | None
    facts: Mapping[str, Json]
    outputs: Mapping[str, Json]
    channels: Mapping[str, Json]
    files: tuple[Json, list[Json]] = (None, [])


@dataclass(slots=True)
class Race:
    """How far a race is: the winners in the order in which they ended, and the racers that ended otherwise, with their
    failure. `over`: it was won, and that is in the log, or it cannot be won any more.
    """

    winners: list[str] = field(default_factory=list)
    out: dict[str, Failure | None] = field(default_factory=dict)
    over: bool = False

    @property
    def failed(self) -> bool:
        """Whether a racer failed."""
        return any(failure is not None for failure in self.out.values())


class ScopePlan:
    """What a scope's definition says about order, worked out once for all its instances.

    `joins` are the nodes for which others race, `racing` says of these for which. A race counts as one that is waited
    for. `asking` are the nodes that ask people, themselves or in what they open. `name` is the scope's in the graph.
    """

    def __init__(self, scope: Scope, *, name: str = "", asking: frozenset[str] = NOBODY) -> None:
        self.scope = scope
        self.name = name
        self.asking = asking
        self.joins = {n.name: n.join for n in scope.nodes if n.join is not None}
        self.racing = {racer: name for name, join in self.joins.items() for racer in join.racers}
        self.waits: dict[str, int] = {n.name: len(n.after) for n in scope.nodes}
        for name, join in self.joins.items():
            self.waits[name] += 1 - len(join.racers)
        self.followers = scope.followers

    @cached_property
    def output_reads(self) -> tuple[str, ...]:
        return tuple(sorted({read for expr in self.scope.output.values() for read in expr.reads}))


@dataclass(slots=True, eq=False)
class ScopeState:
    """One instance of a scope whose nodes the driver hands out one by one: the root, or one that a map is reachable
    from.
    """

    path: str
    plan: ScopePlan
    input: Json
    depth: int
    owner: Opened | None = None
    index: int = 0
    before: Before | None = None
    """Set for the scope of a `finally`: a failure in it halts only what comes after."""
    begun: bool = False
    """Something of it is in the log."""
    result: RoundEnd | None = None
    """What it came to, where its `finally` comes before its end."""
    final: ScopeState | None = None
    """The scope of its `finally`, once that has begun."""
    finishes: bool = False
    """Its `finally` is due, runs, or has run."""
    status: dict[str, NodeStatus] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, Json] = field(default_factory=dict)
    cores: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The record that ended each node: its path and core hash."""
    writes: dict[str, dict[str, Json]] = field(default_factory=dict)
    opened: dict[str, Opened] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    """Nodes that wait for people."""
    races: dict[str, Race] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """Nodes that were given up when a race was won."""
    calls: dict[str, dict[str, Record]] = field(default_factory=dict)
    """What is committed below the calls of agents that have not ended, by their names and the path from there."""
    calling: dict[str, dict[str, Opened]] = field(default_factory=dict)
    """The graphs that run as tools of agents, by the names of these and by path; see `engine.agents`."""
    base_files: Json = None
    """The version of the files that it began with."""
    files: dict[str, Json] = field(default_factory=dict)
    """The versions that its nodes left."""
    parked: bool = False
    """Nothing in here can go on before somebody decides, and none of its tasks is out: it counts nowhere."""
    running: int = 0
    left: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    kept: frozenset[str] = NOBODY
    """Nodes that go on though something failed."""
    finishing: bool = False
    """Its output expressions are due, or being evaluated."""
    ended: bool = False
    """Its end is decided, or in the log."""
    spent: Failure | None = None
    """Why it was broken off: a limit of it is used up, or its time is."""
    stopped: set[str] = field(default_factory=set)
    """Agents whose tools used up a limit of theirs: nothing but their end is due."""
    time: RunTime | None = None

    def __post_init__(self) -> None:
        self.waits = dict(self.plan.waits)
        self.status = dict.fromkeys(self.waits, NodeStatus.WAITING)
        self.left = len(self.waits)
        self.races = {name: Race() for name in self.plan.joins}

    @property
    def scope(self) -> Scope:
        return self.plan.scope

    def parents(self, node: Node) -> tuple[tuple[str, str], ...]:
        """Core hashes of the nodes whose data `node` reads, in path order; of a branch's start where it reads none."""
        if node.join is None:
            return self.ends(node.parents)
        # What becomes of the others, and when, depends on time.
        winners = self.races[node.name].winners
        return self.ends(name for name in node.parents if name not in node.join.racers or name in winners)

    def ends(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """The records that ended these nodes, in path order; the scope's own start where none is named."""
        return tuple(sorted(self.cores[name] for name in names if name in self.cores)) or self.start()

    def skips(self, node: Node) -> bool:
        """Whether a node is skipped whatever its `when` says."""
        if node.join is not None:
            won = len(self.races[node.name].winners) == node.join.count
            return not won or self.not_chosen(node)
        if node.choice is None and not node.control:
            return False
        return self.scope.passes_over(node, skipped=self._passed(), outputs=self.outputs)

    def not_chosen(self, node: Node) -> bool:
        """Whether a node stands in a case that its switch did not choose."""
        return self.scope.not_chosen(node, skipped=self._passed(), outputs=self.outputs)

    def _passed(self) -> set[str]:
        """What was skipped, or failed where that does not halt the scope."""
        return {name for name, status in self.status.items() if status in (NodeStatus.SKIPPED, NodeStatus.FAILED)}

    @property
    def failure(self) -> Failure | None:
        """Of what failed, the first in file order: which was committed first depends on time.

        What was given up since something else failed is not the cause of anything.
        """
        if self.spent is not None:
            return self.spent
        causes = self._causes or self.failures
        if not causes:
            return None
        order = {node.name: i for i, node in enumerate(self.scope.nodes)}
        return causes[min(causes, key=lambda name: order.get(name, len(order)))]

    @property
    def _causes(self) -> dict[str, Failure]:
        return {name: failure for name, failure in self.failures.items() if failure.code != ABANDONED}

    @property
    def _told(self) -> bool:
        """Whether a run that succeeds may hold why this scope failed."""
        owner = self.owner
        if owner is None:
            return False
        if owner.tool:
            return True
        if owner.node.map is not None:
            return owner.node.map.tolerate.allows(1, owner.total)
        return owner.node.on_failure != "fail" or owner.home._told

    def keep(self) -> None:
        """Work out what goes on though something failed. Who wins a race depends on time, and so nothing does there."""
        causes = self._causes
        if causes and self.before is None and self._told and not self.plan.joins:
            ended = {name for name, status in self.status.items() if status.terminal}
            self.kept = still_due(self.scope, failed=causes, ended=ended, asking=self.plan.asking)
        else:
            self.kept = NOBODY

    @property
    def halted(self) -> bool:
        """Nothing new starts in here: something failed, in this scope or around it."""
        if self.before is not None:
            return False
        if self.spent is not None:
            return True
        failed = bool(self.failures) and not self.kept
        return failed or (self.owner is not None and self.owner.stopped)

    def halts(self, name: str) -> bool:
        """Whether nothing new starts of a node: something failed around it, and it is not to go on all the same."""
        if self.before is not None:
            return False
        if self.spent is not None:
            return True
        failed = bool(self.failures) and name not in self.kept
        return failed or (self.owner is not None and self.owner.stopped)

    def waits_for_people(self, name: str) -> bool:
        """Whether all that an open node waits for rests until somebody decides."""
        if name in self.calling:
            return all(opened.rests for opened in self.calling[name].values())
        opened = self.opened.get(name)
        return name in self.asked or (opened is not None and opened.rests)

    def start(self) -> tuple[tuple[str, str], ...]:
        if self.before is not None:
            return ((f"{self.path}!open", self.before.core),)
        return () if self.owner is None else (self.owner.opening(self.path),)
