"""Paths of the ledger: one grammar, one parser, one printer.

    path   = "/" | 1*( "/" step ) [ mark | turn ] | "/" mark
    step   = name [ "[" ( index | key ) "]" | "@" round ] [ call ]
    name   = [a-z][a-zA-Z0-9_]{0,62}
    index  = 5*DIGIT, without leading zeros when longer than five
    key    = "k:" 32 lower-case hex digits
    round  = 3*DIGIT, from 001, without leading zeros when longer than three
    turn   = "#turn-" 4*DIGIT [ "." 2*DIGIT ], without leading zeros when longer than four and two
    call   = a turn with its second part; of the last step only before a mark
    mark   = "!open" | "!join" | "!output" | "!otherwise" | "!writes" | "!result"

`/` is the run's root scope, `/extract` a node, `/extract[00017]` branch 17 of a map and the scope inside it,
`/extract[00017]/read` a node in that scope. A mark names a step of the scope or node itself: `/extract!open`
and `/extract!join` of a map, `/extract[00017]!output` of a branch, `/!output` of the run, `/extract!otherwise` what
stands for the output of a node that failed, and `/extract!writes` the work on what a map, graph or loop writes: events
alone have that path, its result is the one at `/extract`. `/review/draft` is a node of the graph that the node `review`
runs, and `/review!output` that graph's end. `/refine@003` is round 3 of a loop and the scope inside it,
`/refine@003!open` what that round starts from where it is not the first, `/refine@003!output` its end, and
`/refine!join` that of the loop. `/find#turn-0003` is turn 3 of an agent, and `/find#turn-0003.02` the second call of a
tool in it; where that tool is a graph, `/find#turn-0003.02/read` is a node of it, and `/find#turn-0003.02!output` its
end. `/finally` is the scope of the run's `finally`, and `/extract[00017]/finally` that of the branch's, which begins
with its `!open`; `/extract[00017]!result` is what such a branch came to before its `finally` ran. The canonical text is
the identity: two paths are equal iff their texts are, and order of paths means order of texts by code point.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

from decurion_crds.canonical import Json, canonical, digest
from decurion_ledger.errors import BadPath

Mark: TypeAlias = Literal["", "open", "join", "output", "otherwise", "writes", "result"]

MAX_TEXT = 1024
_NAME = re.compile(r"[a-z][a-zA-Z0-9_]{0,62}")
_STEP = re.compile(
    r"([a-z][a-zA-Z0-9_]{0,62})(?:\[(?:([0-9]{5}|[1-9][0-9]{5,11})|k:([0-9a-f]{32}))\]"
    r"|@(00[1-9]|0[1-9][0-9]|[1-9][0-9]{2,11}))?"
    r"(?:#turn-([0-9]{4}|[1-9][0-9]{4,8})\.([0-9]{2}|[1-9][0-9]{2,8}))?"
)
_TURN = re.compile(r"turn-([0-9]{4}|[1-9][0-9]{4,8})(?:\.([0-9]{2}|[1-9][0-9]{2,8}))?")
_KEY = re.compile(r"[0-9a-f]{32}")
_MARKS = frozenset({"open", "join", "output", "otherwise", "writes", "result"})


def branch_key(key: Json) -> str:
    """The 32 hex digits that stand for the key of a map's item, so that re-ordered items keep their paths."""
    return digest("key/v0", canonical(key))[:32]


@dataclass(frozen=True, slots=True)
class Step:
    """A node by its name, or one branch of it: an int for an item's index, a str for an item's
    `branch_key`; or one `round` of it, from 1.
    """

    name: str
    branch: int | str | None = None
    round: int | None = None
    call: tuple[int, int] | None = None
    """Turn and number of a call of an agent, whose graph the next step is in."""

    def __str__(self) -> str:
        call = _turn_text(self.call) if self.call is not None else ""
        if self.round is not None:
            return f"{self.name}@{self.round:03d}{call}"
        if self.branch is None:
            return f"{self.name}{call}"
        inside = f"{self.branch:05d}" if isinstance(self.branch, int) else f"k:{self.branch}"
        return f"{self.name}[{inside}]{call}"

    @property
    def whole(self) -> bool:
        """Whether this is a node itself, and no branch, round or call of it."""
        return self.branch is None and self.round is None and self.call is None


@dataclass(frozen=True, slots=True)
class LedgerPath:
    """A parsed path. Constructors (`child`, `branch`, `keyed`, `open`, `join`, `output`) raise `BadPath`."""

    steps: tuple[Step, ...] = ()
    mark: Mark = ""
    turn: tuple[int, int | None] | None = None
    """A turn of an agent, and a call in it, from 1."""

    @classmethod
    def parse(cls, text: str) -> LedgerPath:
        """The path that `text` is the canonical form of; raises `BadPath` for anything else."""
        if len(text) > MAX_TEXT:
            raise BadPath(text[:64] + "…", f"a path has at most {MAX_TEXT} characters")
        if not text.startswith("/"):
            raise BadPath(text, "a path starts with /")
        last = text.rfind("#")
        if last > text.rfind("/") and "!" not in text[last:]:
            steps = _parse_steps(text[1:last], text)
            if steps[-1].call is not None:
                raise BadPath(text, "a call has no turns; its graph's nodes have")
            return cls(steps, turn=_parse_turn(text[last + 1 :], text))
        body, bang, mark = text[1:].partition("!")
        if bang and mark not in _MARKS:
            raise BadPath(
                text, "after ! stands open, join, output, otherwise, writes or result, and nothing after that"
            )
        return cls(_parse_steps(body, text) if body else (), cast(Mark, mark))

    def __str__(self) -> str:
        mark = f"!{self.mark}" if self.mark else ""
        if self.turn is not None:
            mark = _turn_text(self.turn)
        return "/" + "/".join(map(str, self.steps)) + mark

    def child(self, name: str) -> LedgerPath:
        """The node `name` in the scope that this path names: also that of a call."""
        if self.turn is None or self.turn[1] is None:
            self._needs_no_mark("a child")
        if not _NAME.fullmatch(name):
            raise BadPath(name, "a node's name has at most 63 letters, digits and underscores, a small letter first")
        return _made((*self._scope_steps(), Step(name)))

    def branch(self, index: int) -> LedgerPath:
        """The branch of item `index` (from 0) of the map that this path names."""
        if not 0 <= index <= 999_999_999_999:
            raise BadPath(str(index), "the index of a branch has 1 to 12 digits and no sign")
        return self._with_branch(index)

    def keyed(self, key: str) -> LedgerPath:
        """The branch of the item whose `branch_key` is `key`."""
        if not _KEY.fullmatch(key):
            raise BadPath(key, "the key of a branch has 32 lower-case hex digits, made by branch_key")
        return self._with_branch(key)

    def nth(self, round: int) -> LedgerPath:
        """The `round`-th round (from 1) of the loop that this path names."""
        if not 1 <= round <= 999_999_999_999:
            raise BadPath(str(round), "the number of a round has 1 to 12 digits, no sign, and is not 0")
        self._needs_no_mark("round")
        if not self.steps or not self.steps[-1].whole:
            raise BadPath(str(self), "only a node has rounds")
        return _made((*self.steps[:-1], Step(self.steps[-1].name, round=round)))

    @property
    def open(self) -> LedgerPath:
        return self._marked("open")

    @property
    def join(self) -> LedgerPath:
        return self._marked("join")

    @property
    def output(self) -> LedgerPath:
        return self._marked("output")

    @property
    def parent(self) -> LedgerPath | None:
        """The path one step up: of a mark or turn its node, of a call its turn, of a branch its map, of a round its
        loop, of a node its scope; None for the root.
        """
        if self.turn is not None and self.turn[1] is not None:
            return LedgerPath(self.steps, turn=(self.turn[0], None))
        if self.mark or self.turn is not None:
            return self._settled(self.steps)
        if not self.steps:
            return None
        last = self.steps[-1]
        if not last.whole:
            return LedgerPath((*self.steps[:-1], Step(last.name)))
        return self._settled(self.steps[:-1])

    @staticmethod
    def _settled(steps: tuple[Step, ...]) -> LedgerPath:
        """The path of these steps: a call at the end is the call itself."""
        if steps and steps[-1].call is not None:
            return LedgerPath((*steps[:-1], replace(steps[-1], call=None)), turn=steps[-1].call)
        return LedgerPath(steps)

    def ancestors(self) -> Iterator[LedgerPath]:
        """`parent`, its parent, and so on up to the root."""
        up = self.parent
        while up is not None:
            yield up
            up = up.parent

    def _needs_no_mark(self, what: str) -> None:
        if self.mark or self.turn is not None:
            raise BadPath(str(self), f"a path with ! or # has no {what}")

    def _marked(self, mark: Mark) -> LedgerPath:
        if self.turn is None or self.turn[1] is None:
            self._needs_no_mark("mark of its own")
        return _made(self._scope_steps(), mark)

    def _scope_steps(self) -> tuple[Step, ...]:
        if self.turn is None or self.turn[1] is None:
            return self.steps
        return (*self.steps[:-1], replace(self.steps[-1], call=(self.turn[0], self.turn[1])))

    def _with_branch(self, branch: int | str) -> LedgerPath:
        self._needs_no_mark("branch")
        if not self.steps or not self.steps[-1].whole:
            raise BadPath(str(self), "only a node has branches")
        return _made((*self.steps[:-1], Step(self.steps[-1].name, branch)))


ROOT = LedgerPath()


def _made(steps: tuple[Step, ...], mark: Mark = "") -> LedgerPath:
    path = LedgerPath(steps, mark)
    if len(str(path)) > MAX_TEXT:
        raise BadPath(str(path)[:64] + "…", f"a path has at most {MAX_TEXT} characters")
    return path


def _parse_steps(body: str, text: str) -> tuple[Step, ...]:
    return tuple(_parse_step(part, text) for part in body.split("/"))


def _parse_turn(turn: str, text: str) -> tuple[int, int | None]:
    found = _TURN.fullmatch(turn)
    if found is None:
        raise BadPath(text, "after # stands turn-0000, or turn-0000.00 for a call in it, and nothing after that")
    return int(found[1]), int(found[2]) if found[2] is not None else None


def _parse_step(part: str, text: str) -> Step:
    found = _STEP.fullmatch(part)
    if found is None:
        raise BadPath(text, f"the step {part!r} is no name, name[00000], name[k:32 hex digits], name@001 or a call")
    name, index, key, round, turn, call = found.groups()
    return Step(
        name,
        int(index) if index is not None else key,
        int(round) if round is not None else None,
        (int(turn), int(call)) if turn is not None else None,
    )


def _turn_text(turn: tuple[int, int | None]) -> str:
    number, call = turn
    return f"#turn-{number:04d}" + (f".{call:02d}" if call is not None else "")
