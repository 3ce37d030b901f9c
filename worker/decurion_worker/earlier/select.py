"""Which results of an ended run still hold in a new one. Pure: an index of its log and two graphs in, paths out.

A retry is the resume of a log from which what failed was taken out; a fork, of one from which one path was. So the
unit is what the engine commits: a node holds when it ended well, has the same digest, reads the same, and all nodes
before it hold. Of a map, graph or branch that does not hold whole, what is inside is judged in the same way. What only
looks like a failure, since `onFailure`, `otherwise` or a map's `tolerate` took care of it, ended well. Of a loop the
rounds hold up to the first that does not hold whole; none of one that used up its rounds, which would only do so again.
What a race gave up is decided again with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from decurion_crds.compiled import FINALLY, CompiledGraph, Node, Scope
from decurion_ledger import Record
from decurion_worker.errors import LoopExhausted

MARKS = ("!", "/", "[", "@", "#")
"""What may follow a node's path in the path of something that belongs to it."""


class Seen(NamedTuple):
    """What the selection has to know of a result: whether it failed, with which code, and whether it has a value all
    the same.
    """

    failed: bool
    has_value: bool
    code: str = ""

    @property
    def skipped(self) -> bool:
        return not self.failed and not self.has_value


@dataclass(slots=True)
class Races:
    """What a log says of races: who was to be given up, by path, and who won, by the path of the node that waited."""

    lost: set[str] = field(default_factory=set)
    winners: dict[str, list[str]] = field(default_factory=dict)

    def note(self, record: Record) -> None:
        """Take a `race_won`."""
        place = record.path.rpartition("/")[0]
        self.lost.update(f"{place}/{name}" for name in record.envelope["lost"])
        self.winners[record.path] = record.envelope["winners"]


@dataclass(frozen=True, slots=True)
class Selection:
    """`paths` of results that hold. `known` says whether the path of a fork is in the log, or a node of the graph."""

    paths: frozenset[str]
    known: bool


def select(
    index: Mapping[str, Seen],
    old: CompiledGraph,
    new: CompiledGraph,
    *,
    same: Callable[[Node], bool],
    path: str = "",
    races: Races | None = None,
) -> Selection:
    """The results of a run of `old`, by path in `index`, that hold in a run of `new`.

    `path` is a node, a branch of a map or a round of a loop that is to run again whatever became of it. `same` says of
    a node of the root whether what it reads of input and channels is the same in both runs.
    """
    chosen = _Selecting(index, old, new, same, path, races or Races())
    chosen.root()
    return Selection(frozenset(chosen.kept), not path or chosen.known(path))


class _Selecting:
    def __init__(
        self,
        index: Mapping[str, Seen],
        old: CompiledGraph,
        new: CompiledGraph,
        same: Callable[[Node], bool],
        path: str,
        races: Races,
    ) -> None:
        self._index = index
        self._old = old
        self._new = new
        self._same = same
        self._path = path
        self._lost = races.lost
        self._winners = races.winners
        self._sorted = sorted(index)
        self._units: dict[str, dict[str, None]] = {}
        for one in index:
            self._note_units(one)
        self.kept: set[str] = set()

    def _note_units(self, path: str) -> None:
        """Branches by the path of their map."""
        end = path.find("]")
        while end >= 0:
            unit = path[: end + 1]
            self._units.setdefault(unit[: unit.rindex("[")], {})[unit] = None
            end = path.find("]", end + 1)

    def known(self, path: str) -> bool:
        named = path[1:] in self._new.root.by_name
        return named or path in self._index or any(True for _ in self._below(path))

    def root(self) -> None:
        held = self._scope("", self._old.root, self._new.root, self._same)
        output = self._index.get("/!output")
        whole = len(held) == len(self._new.root.nodes) and self._old.root.digest == self._new.root.digest
        if whole and output is not None and not output.failed:
            self.kept.add("/!output")
        self._drop_given_up()

    def _drop_given_up(self) -> None:
        """What was below a node that was given up did not count in the run that it was in."""
        for base in self._lost:
            end = next((p for p in (base, f"{base}!otherwise") if p in self._index and self._index[p].skipped), None)
            if end is not None:
                self.kept.difference_update(path for path in self._below(base) if path != end)

    def _scope(self, path: str, old: Scope, new: Scope, same: Callable[[Node], bool]) -> set[str]:
        """Keep what holds of one instance of a scope; the names of the nodes that hold whole."""
        held: set[str] = set()
        for name in new.order:
            node, before = new.by_name[name], old.by_name.get(name)
            base = f"{path}/{name}"
            unchanged = before is not None and before.digest == node.digest and same(node)
            if not unchanged or base == self._path or not self._follows(base, node, held) or self._gave_up(base, new):
                continue
            if not self._is_inside(base) and self._ended_well(base, node):
                self._keep_below(base)
                held.add(name)
            elif node.template is not None and f"{base}!open" in self._index:
                self.kept.add(f"{base}!open")
                self._parts(base, node)
        return held

    def _follows(self, base: str, node: Node, held: Container[str]) -> bool:
        """Whether what a node comes after holds: of those that raced for it the winners, all where that is not known.

        As many others would not do: what the node has read is what its winners gave.
        """
        racers = node.join.racers if node.join is not None else ()
        raced = self._winners.get(base, racers)
        return all(name in held for name in node.after if name not in racers or name in raced)

    def _gave_up(self, base: str, scope: Scope) -> bool:
        """Whether a node was given up when a race was won, or was skipped where it raced: that is decided again."""
        one, instead = self._index.get(base), self._index.get(f"{base}!otherwise")
        if base in self._lost and instead is not None and instead.skipped:
            return True
        name = base.rpartition("/")[2]
        races = base in self._lost or any(node.join is not None and name in node.join.racers for node in scope.nodes)
        return races and one is not None and one.skipped

    def _is_inside(self, base: str) -> bool:
        """Whether the path that runs again lies in what has this path."""
        return self._path.startswith(base) and self._path[len(base) : len(base) + 1] in MARKS

    def _ended_well(self, base: str, node: Node) -> bool:
        if node.template is None or f"{base}!open" not in self._index:
            return self._settled(base, base, node)
        end = _end_of(base, node)
        if end not in self._index:
            return False
        if self._index[end].failed or not node.writes:
            return self._settled(base, end, node)
        return self._settled(base, base, node)

    def _settled(self, base: str, end: str, node: Node) -> bool:
        """Whether the record at `end` is that of a node that ended well, or whose failure was taken care of."""
        one = self._index.get(end)
        if one is None or not one.failed:
            return one is not None
        if node.on_failure != "otherwise":
            return node.on_failure == "skip"
        instead = self._index.get(f"{base}!otherwise")
        return one.has_value or (instead is not None and not instead.failed)

    def _parts(self, base: str, node: Node) -> None:
        """Keep what holds inside a map, graph or loop that does not hold whole."""
        assert node.template is not None
        body = self._new.templates[node.template]
        end = self._index.get(_end_of(base, node))
        joined = end is not None and not end.failed
        if joined and not self._is_inside(base):
            # Only its `writes` failed.
            self._keep_below(base, but=(base, f"{base}!otherwise"))
        elif node.loop is not None:
            used_up = end is not None and end.code == LoopExhausted.code
            if not used_up or self._is_inside(base):
                self._rounds(base, body)
        elif node.map is None:
            self._scope(base, body, body, _anything)
        else:
            self._branches(base, body, joined)

    def _rounds(self, base: str, body: Scope) -> None:
        """Keep the rounds of a loop up to the first that does not hold whole, and what holds of that."""
        number = 1
        while True:
            unit = f"{base}@{number:03d}"
            end, following = self._index.get(f"{unit}!output"), f"{base}@{number + 1:03d}!open"
            if unit == self._path:
                return
            if end is None or end.failed or self._is_inside(unit):
                self._scope(unit, body, body, _anything)
                return
            self._keep_below(unit)
            if following not in self._index:
                return
            self.kept.add(following)
            number += 1

    def _branches(self, base: str, body: Scope, joined: bool) -> None:
        for unit in self._units.get(base, ()):
            end = self._index.get(f"{unit}!output")
            if unit == self._path:
                continue
            if end is not None and (joined or not end.failed) and not self._is_inside(unit):
                self._keep_below(unit)
            else:
                self._scope(unit, body, body, _anything)

    def _keep_below(self, base: str, *, but: tuple[str, ...] = ()) -> None:
        if base in self._index:
            self.kept.add(base)
        self.kept.update(self._below(base))
        self.kept.difference_update(but)

    def _below(self, base: str) -> Iterator[str]:
        for mark in MARKS:
            prefix = base + mark
            for at in range(bisect_left(self._sorted, prefix), len(self._sorted)):
                if not self._sorted[at].startswith(prefix):
                    break
                yield self._sorted[at]


def _end_of(base: str, node: Node) -> str:
    """The path of the record that ends what a node opened."""
    return f"{base}!output" if node.map is None and node.loop is None else f"{base}!join"


def _anything(node: Node) -> bool:
    return True


def is_final(path: str) -> bool:
    """Whether a path lies in `finally`: a new run has its own."""
    return path == f"/{FINALLY}" or path.startswith((f"/{FINALLY}/", f"/{FINALLY}!"))
