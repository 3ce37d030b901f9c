"""Nodes that opened scopes: maps, graphs and loops, with what is known of their branches.

Pure data with the bookkeeping that belongs to it. What may happen next is the engine's business.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from decurion_crds.canonical import Json
from decurion_crds.compiled import Node
from decurion_crds.wide import ItemRef, ListRef, WideDict, has_refs
from decurion_ledger import Record, branch_key
from decurion_ledger.lists import LIST_LIMIT
from decurion_worker.engine.rounds import Best
from decurion_worker.errors import TimedOut
from decurion_worker.failure import Failure
from decurion_worker.link import ItemKind

if TYPE_CHECKING:
    from decurion_worker.engine.scopes import ScopePlan, ScopeState

ARM = 32
"""Bytes of an arm."""
UNBOUNDED = 604_800.0
"""The `timeoutSeconds` of a map or graph that says nothing of it: the most that one may say."""
MAX_ROWS = 512
"""Failures above which the output of a map is built by a runner."""


class BranchStatus(IntEnum):
    PENDING = 0
    TAKEN = 1
    OK = 2
    FAILED = 3


class RoundEnd(NamedTuple):
    """What a scope, such as the last round of a loop, came to: its output, and the hash of the record that says so."""

    output: Json
    core: str
    files: Json = None


@dataclass(slots=True, eq=False)
class Opened:
    """A node that opened scopes: a map with a branch for each item, a graph with itself as its only branch, or a loop
    with its current round as the only one. Or a call of an agent, whose `tool` is the name of a scope, as a graph.

    `core` is the hash of its `scope_opened`, `base` the input that all branches share, `keys`, if any, name them.
    Of a branch that ended only its status, slot and arm are kept, 37 bytes; outputs as long as they are narrow.
    """

    path: str
    home: ScopeState
    node: Node
    body: ScopePlan
    items: list[Json] | ListRef
    base: dict[str, Json]
    keys: list[Json] | None
    core: str
    depth: int
    tool: str = ""
    status: bytearray = field(default_factory=bytearray)
    outputs: list[Json] | None = field(default_factory=list)
    """None once they are wide: then they are read from the log."""
    slots: array[int] = field(default_factory=lambda: array("I"))
    arms: bytearray = field(default_factory=bytearray)
    failures: dict[int, Failure] = field(default_factory=dict)
    partial: dict[int, dict[str, Record]] = field(default_factory=dict)
    """What is committed of branches that run whole on a runner, by paths from there."""
    scopes: dict[int, ScopeState] = field(default_factory=dict)
    returned: list[int] = field(default_factory=list)
    held: dict[int, list[tuple[ItemKind, str, str]]] = field(default_factory=dict)
    """Tasks of branches that were parked and have no room yet, by branch, the first first: kind, scope and node."""
    cursor: int = 0
    running: int = 0
    parked: int = 0
    """How many of those that run are parked."""
    ok: int = 0
    joining: bool = False
    """A runner builds the output, or says what comes after a round; or will."""
    round: int = 1
    """The round of a loop that runs, or ran last."""
    rounds: int = 0
    """How many rounds of a loop ended well."""
    last: RoundEnd | None = None
    best: Best | None = None
    joined: bool = False
    due: str | None = None
    """When its time is over (RFC 3339), once that is in the log."""
    timed_out: bool = False
    spent: Failure | None = None
    """Why it was broken off: a limit of its node is used up."""
    total: int = 0
    files: Json = None
    """The version of the files that its scopes begin with."""
    round_core: str = ""
    """The hash of what opened the round of a loop that is not the first."""
    order: int = 0
    """Its age among what may have branches to start; 0 before it is offered."""
    _index: dict[str, int] = field(default_factory=dict)
    _kept: int = 0

    def __post_init__(self) -> None:
        self.total = self.items.count if isinstance(self.items, ListRef) else len(self.items)
        self.status = bytearray(self.total)
        self.outputs = [None] * self.total
        self.slots = array("I", bytes(4 * self.total))
        self.arms = bytearray(ARM * self.total)

    def opening(self, scope: str) -> tuple[str, str]:
        """The record that opened a scope of this, with its hash."""
        return (f"{scope}!open", self.round_core) if self.round > 1 else (f"{self.path}!open", self.core)

    @property
    def template(self) -> str:
        """The scope that each branch is one of."""
        return self.tool or self.node.template or ""

    @property
    def single(self) -> bool:
        """A graph, a call or a loop: one scope at a time."""
        return self.node.map is None

    @property
    def leaf(self) -> bool:
        """Whether one runner runs a branch whole. Where its node has limits it does not, so that these hold exactly."""
        return self.body.scope.leaf and self.node.limits is None

    @property
    def wide(self) -> bool:
        """A runner builds the output: it is too large to be built beside all else, or files have to be merged."""
        merges = self.node.workspace is not None and bool(self.node.workspace.write)
        return self.outputs is None or len(self.failures) > MAX_ROWS or (self.node.map is not None and merges)

    @property
    def over_tolerance(self) -> bool:
        return self.fails_with(len(self.failures))

    def fails_with(self, failed: int) -> bool:
        """Whether so many failed items are more than the map tolerates."""
        return not self.node.map.tolerate.allows(failed, self.total) if self.node.map else False

    @property
    def stopped(self) -> bool:
        """No branch starts any more: too many failed, its time is over, or something around the map failed."""
        return self.timed_out or self.spent is not None or self.over_tolerance or self.home.halts(self.node.name)

    @property
    def seconds(self) -> float | None:
        """How long it may take, None without a bound of its own."""
        if self.tool:
            limits = self.body.scope.limits
            return limits.seconds if limits is not None else None
        return self.node.timeout_seconds if self.node.timeout_seconds < UNBOUNDED else None

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
        if self.stopped or self.joining:
            return 0
        left = self.total - self.ended - self.running
        return max(0, min(left, self.room))

    @property
    def room(self) -> int:
        """How many more branches may execute; what is parked does not."""
        limit = self.node.map.concurrency if self.node.map else None
        return self.total if limit is None else limit - (self.running - self.parked)

    @property
    def rests(self) -> bool:
        """Nothing of it can go on before somebody decides."""
        if self.joined or self.startable or not 0 < self.running == self.parked:
            return False
        # Of what is stopped only `finally` goes on.
        return not self.stopped or all(scope.finishes for scope in self.scopes.values())

    @property
    def complete(self) -> bool:
        """Nothing is left to run: every branch ended, or the map is stopped and none is running."""
        return self.ended == self.total or (self.stopped and self.running == 0)

    def index_of(self, token: str) -> int | None:
        if self.keys is None:
            return int(token) if token.isdecimal() and int(token) < self.total else None
        if not self._index:
            self._index.update({self._token(i): i for i in range(self.total)})
        return self._index.get(token)

    def _token(self, index: int) -> str:
        return f"{index:05d}" if self.keys is None else f"k:{branch_key(self.keys[index])}"

    def branch_path(self, index: int) -> str:
        if self.node.loop is not None:
            return f"{self.path}@{self.round:03d}"
        return self.path if self.single else f"{self.path}[{self._token(index)}]"

    def branch_input(self, index: int) -> dict[str, Json]:
        """Input of one branch: the node's `with`, the item under its name, and `index` where the body declares it."""
        block = self.node.map
        if block is None:
            return self.base
        names: Mapping[str, Json] = self.body.scope.input_schema.get("properties", {})
        item = ItemRef(self.items, index) if isinstance(self.items, ListRef) else self.items[index]
        given = {**self.base, block.as_: item}
        if "index" in names and "index" not in given:
            given["index"] = index
        return WideDict(given) if has_refs(item) or has_refs(self.base) else given

    def round_ended(self, end: RoundEnd) -> None:
        """A round of a loop ended well."""
        self.running -= self.status[0] == BranchStatus.TAKEN
        self.status[0] = BranchStatus.OK
        self.cursor = self.total
        self._left(0)
        self.last = end
        self.rounds += 1
        self.joining = True

    def open_round(self, opening: Mapping[str, Json], core: str, files: Json) -> None:
        """The next round of a loop has begun."""
        named, last = opening.get("best"), self.last
        if named is not None and last is not None and named["round"] == self.round:
            self.best = Best(self.round, named["score"], last.output, last.core, last.files)
        self.round += 1
        self.base, self.round_core, self.files = opening["input"], core, files
        self.status[0] = BranchStatus.PENDING
        self.cursor = 0
        self.last, self.joining = None, False

    def next_index(self) -> int | None:
        """The next branch that may start, returned ones first, or None. It is marked as taken."""
        if self.stopped or self.room < 1:
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

    def end(
        self, index: int, *, output: Json, size: int | None, slot: int, arm: bytes, failure: Failure | None
    ) -> None:
        """A branch ended. `size` is the bytes of its output, None where that was not loaded."""
        if self.status[index] == BranchStatus.TAKEN:
            self.running -= 1
        self.arms[ARM * index : ARM * (index + 1)] = arm
        self.slots[index] = slot
        self.partial.pop(index, None)
        self._left(index)
        if failure is not None:
            self.status[index] = BranchStatus.FAILED
            self.failures[index] = failure
            return
        self.status[index] = BranchStatus.OK
        self.ok += 1
        self._keep(index, output, size)

    def _left(self, index: int) -> None:
        """The scope of a branch has ended: a replay may have found it parked."""
        scope = self.scopes.pop(index, None)
        if scope is not None and (scope.parked or (scope.final is not None and scope.final.parked)):
            self.parked -= 1

    def _keep(self, index: int, output: Json, size: int | None) -> None:
        if self.outputs is None:
            return
        self._kept += size if size is not None else LIST_LIMIT + 1
        if self._kept > LIST_LIMIT:
            self.outputs = None
        else:
            self.outputs[index] = output

    def forget(self) -> None:
        """It is joined: what is shown of it stays, what its output was made of goes."""
        self.joined = True
        self.items, self.outputs, self.base, self.keys = [], None, {}, None
        self.slots, self.arms = array("I"), bytearray()
        self.files = None
        self.last = self.best = None
        self._index.clear()
        self.partial.clear()

    def ended_arms(self) -> list[tuple[str, str]]:
        """Path and arm, in hex, of the branches that ended, in item order."""
        return [
            (self.branch_path(i), self.arms[ARM * i : ARM * (i + 1)].hex())
            for i, status in enumerate(self.status)
            if status >= BranchStatus.OK
        ]

    def rows(self) -> list[dict[str, Json]]:
        """The failures as the node's output lists them, in item order, whatever order they happened in."""
        rows = []
        for index in sorted(self.failures):
            failure = self.failures[index]
            row = {"index": index, "node": failure.node, "class": failure.klass, "error": failure.code}
            if self.keys is not None:
                row["key"] = self.keys[index]
            rows.append(row)
        return rows

    def result(self) -> dict[str, Json]:
        """The node's output while it is narrow: successes and failures in item order."""
        items = [o for o, s in zip(self.outputs or (), self.status, strict=True) if s == BranchStatus.OK]
        return {"items": items, "failures": self.rows(), "total": self.total}


def timed_out(opened: Opened) -> Failure:
    error = TimedOut(opened.path, opened.seconds or opened.node.timeout_seconds)
    return Failure(opened.path, error.klass, error.code, str(error))
