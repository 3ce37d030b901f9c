"""The two things that a run is made of while it runs: scopes driven node by node, and maps over branches.

Pure data with the bookkeeping that belongs to it. What may happen next is the engine's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from decurion_crds.canonical import Json
from decurion_crds.compiled import Node, Scope
from decurion_ledger import Record, branch_key
from decurion_worker.failure import Failure


class NodeStatus(IntEnum):
    WAITING = 0
    READY = 1
    OPEN = 2
    """A map whose branches run."""
    OK = 3
    SKIPPED = 4
    FAILED = 5

    @property
    def terminal(self) -> bool:
        return self >= NodeStatus.OK


class BranchStatus(IntEnum):
    PENDING = 0
    TAKEN = 1
    OK = 2
    FAILED = 3


class ScopePlan:
    """What a scope's definition says about order, worked out once for all its instances."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.waits: dict[str, int] = {n.name: len(n.after) for n in scope.nodes}
        self.followers: dict[str, list[str]] = {n.name: [] for n in scope.nodes}
        for node in scope.nodes:
            for before in node.after:
                self.followers[before].append(node.name)

    @cached_property
    def output_reads(self) -> tuple[str, ...]:
        return tuple(sorted({read for expr in self.scope.output.values() for read in expr.reads}))


@dataclass(slots=True, eq=False)
class ScopeState:
    """One instance of a scope whose nodes the driver hands out one by one: the root, or a branch with a map inside."""

    path: str
    plan: ScopePlan
    input: Json
    depth: int
    owner: MapState | None = None
    index: int = 0
    status: dict[str, NodeStatus] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, Json] = field(default_factory=dict)
    cores: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The record that ended each node: its path and core hash."""
    writes: dict[str, dict[str, Json]] = field(default_factory=dict)
    maps: dict[str, MapState] = field(default_factory=dict)
    running: int = 0
    left: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    finishing: bool = False
    """Its output expressions are due, or being evaluated."""
    ended: bool = False
    """Its end is decided, or in the log."""

    def __post_init__(self) -> None:
        self.waits = dict(self.plan.waits)
        self.status = dict.fromkeys(self.waits, NodeStatus.WAITING)
        self.left = len(self.waits)

    @property
    def scope(self) -> Scope:
        return self.plan.scope

    def parents(self, node: Node) -> tuple[tuple[str, str], ...]:
        """Core hashes of the nodes whose data `node` reads, in path order; of a branch's start where it reads none."""
        return self.ends(node.parents)

    def ends(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """The records that ended these nodes, in path order; the scope's own start where none is named."""
        return tuple(sorted(self.cores[name] for name in names if name in self.cores)) or self.start()

    @property
    def failure(self) -> Failure | None:
        """Of what failed, the first in file order: which was committed first depends on time."""
        if not self.failures:
            return None
        order = {node.name: i for i, node in enumerate(self.scope.nodes)}
        return self.failures[min(self.failures, key=lambda name: order.get(name, len(order)))]

    @property
    def halted(self) -> bool:
        """Nothing new starts in here: something failed, in this scope or around it."""
        return bool(self.failures) or (self.owner is not None and self.owner.stopped)

    def start(self) -> tuple[tuple[str, str], ...]:
        return () if self.owner is None else ((f"{self.owner.path}!open", self.owner.opened),)


@dataclass(slots=True, eq=False)
class MapState:
    """One map whose items are known. `base` is the input all branches share; `keys`, if any, name the branches."""

    path: str
    home: ScopeState
    node: Node
    body: ScopePlan
    items: list[Json]
    base: dict[str, Json]
    keys: list[Json] | None
    opened: str
    depth: int
    status: bytearray = field(default_factory=bytearray)
    outputs: list[Json] = field(default_factory=list)
    arms: list[str] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    partial: dict[int, dict[str, Record]] = field(default_factory=dict)
    scopes: dict[int, ScopeState] = field(default_factory=dict)
    returned: list[int] = field(default_factory=list)
    cursor: int = 0
    running: int = 0
    ok: int = 0
    joined: bool = False
    _index: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.status = bytearray(len(self.items))
        self.outputs = [None] * len(self.items)
        self.arms = [""] * len(self.items)

    @property
    def total(self) -> int:
        return len(self.items)

    @property
    def leaf(self) -> bool:
        return self.body.scope.leaf

    @property
    def over_tolerance(self) -> bool:
        return not self.node.map.tolerate.allows(len(self.failures), self.total) if self.node.map else False

    @property
    def stopped(self) -> bool:
        """No branch starts any more: too many failed, or something around the map did."""
        return self.over_tolerance or self.home.halted

    @property
    def ended(self) -> int:
        return self.ok + len(self.failures)

    @property
    def exhausted(self) -> bool:
        """Every branch was handed out; one that is given back makes it not so."""
        return self.stopped or (self.cursor >= self.total and not self.returned)

    @property
    def startable(self) -> int:
        """How many branches could start now."""
        if self.stopped:
            return 0
        left = self.total - self.ended - self.running
        limit = self.node.map.concurrency if self.node.map else None
        return left if limit is None else max(0, min(left, limit - self.running))

    @property
    def complete(self) -> bool:
        """Nothing is left to run: every branch ended, or the map is stopped and none is running."""
        return self.ended == self.total or (self.stopped and self.running == 0)

    def index_of(self, token: str) -> int | None:
        if self.keys is None:
            return int(token) if token.isdecimal() and int(token) < self.total else None
        if not self._index:
            self._index.update({f"k:{branch_key(key)}": i for i, key in enumerate(self.keys)})
        return self._index.get(token)

    def branch_path(self, index: int) -> str:
        token = f"{index:05d}" if self.keys is None else f"k:{branch_key(self.keys[index])}"
        return f"{self.path}[{token}]"

    def branch_input(self, index: int) -> dict[str, Json]:
        """Input of one branch: the node's `with`, the item under its name, and `index` where the body declares it."""
        block = self.node.map
        names: Mapping[str, Json] = self.body.scope.input_schema.get("properties", {})
        given = dict(self.base)
        if block is not None:
            given[block.as_] = self.items[index]
        if "index" in names and "index" not in given:
            given["index"] = index
        return given

    def next_index(self) -> int | None:
        """The next branch that may start, returned ones first, or None. It is marked as taken."""
        limit = self.node.map.concurrency if self.node.map else None
        if self.stopped or (limit is not None and self.running >= limit):
            return None
        while self.returned:
            index = self.returned.pop()
            if self.status[index] == BranchStatus.PENDING:
                return self._take(index)
        while self.cursor < self.total:
            index = self.cursor
            self.cursor += 1
            if self.status[index] == BranchStatus.PENDING:
                return self._take(index)
        return None

    def start(self, index: int) -> bool:
        """Mark a branch as taken; False when it is already, or has ended."""
        if self.status[index] != BranchStatus.PENDING:
            return False
        self._take(index)
        return True

    def _take(self, index: int) -> int:
        self.status[index] = BranchStatus.TAKEN
        self.running += 1
        return index

    def give_back(self, index: int) -> None:
        if self.status[index] == BranchStatus.TAKEN:
            self.status[index] = BranchStatus.PENDING
            self.running -= 1
            self.returned.append(index)

    def end(self, index: int, *, output: Json, arm: str, failure: Failure | None) -> None:
        if self.status[index] == BranchStatus.TAKEN:
            self.running -= 1
        self.arms[index] = arm
        self.partial.pop(index, None)
        self.scopes.pop(index, None)
        if failure is None:
            self.status[index] = BranchStatus.OK
            self.outputs[index] = output
            self.ok += 1
        else:
            self.status[index] = BranchStatus.FAILED
            self.failures[index] = failure

    def result(self) -> dict[str, Json]:
        """The node's output: successes and failures in item order, whatever order they ended in."""
        failures = []
        for index in sorted(self.failures):
            failure = self.failures[index]
            row = {"index": index, "node": failure.node, "class": failure.klass, "error": failure.code}
            if self.keys is not None:
                row["key"] = self.keys[index]
            failures.append(row)
        items = [o for o, s in zip(self.outputs, self.status, strict=True) if s == BranchStatus.OK]
        return {"items": items, "failures": failures, "total": self.total}
