"""Lists too wide to carry: references that stand for them in values, and the containers that hold such references.

A list whose canonical form exceeds 64 KiB is kept in chunks of its own (see the ledger's `lists`); in memory and
between processes a `ListRef` stands for it. What holds a reference is itself marked (`WideDict`, `WideList`), so that
a look at the type of a value tells whether anything in it stands elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

from decurion_crds.canonical import Json


class ListRef:
    """A list that is kept elsewhere: how many items, how many bytes as canonical JSON, the Merkle root (hex) of its
    items' value hashes, and the SHA-256 (hex) of the blob that names its chunks.

    Two references are equal iff the lists are. It is no JSON value on purpose: whoever forgets it is told so.
    """

    __slots__ = ("bytes", "count", "index", "root")

    def __init__(self, count: int, bytes: int, root: str, index: str) -> None:
        self.count = count
        self.bytes = bytes
        self.root = root
        self.index = index

    def __reduce__(self) -> tuple[type[ListRef], tuple[int, int, str, str]]:
        return ListRef, (self.count, self.bytes, self.root, self.index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ListRef) and (self.count, self.root) == (other.count, other.root)

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"ListRef({self.count} items, {self.bytes} bytes, root {self.root[:12]}…)"


class ItemRef:
    """One item of a list that is kept elsewhere."""

    __slots__ = ("list", "number")

    def __init__(self, list: ListRef, number: int) -> None:
        self.list = list
        self.number = number

    def __reduce__(self) -> tuple[type[ItemRef], tuple[ListRef, int]]:
        return ItemRef, (self.list, self.number)

    def __repr__(self) -> str:
        return f"ItemRef({self.number} of {self.list!r})"


class Merged:
    """What a rule makes of lists of which one at least is kept elsewhere: whoever reads it works it out.

    `parts` are the lists with who wrote them, in the order of merging; for the rules see `merging`.
    """

    __slots__ = ("channel", "key", "parts", "prefer", "rule")

    def __init__(
        self, channel: str, rule: str, key: str, prefer: str, parts: tuple[tuple[str, list[Json] | ListRef], ...]
    ) -> None:
        self.channel = channel
        self.rule = rule
        self.key = key
        self.prefer = prefer
        self.parts = parts

    def __reduce__(self) -> tuple[type[Merged], tuple[Any, ...]]:
        return Merged, (self.channel, self.rule, self.key, self.prefer, self.parts)


class Unmerged:
    """What a rule refuses to merge: whoever reads it is told why."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    def __reduce__(self) -> tuple[type[Unmerged], tuple[str]]:
        return Unmerged, (self.why,)


class WideDict(dict[str, Json]):
    """An object with a reference somewhere in it."""

    __slots__ = ()


class WideList(list[Json]):
    """A list with a reference somewhere in it."""

    __slots__ = ()


_DEEPEST = 250
_WIDE = frozenset({ListRef, ItemRef, Merged, Unmerged, WideDict, WideList})


def has_refs(value: object) -> bool:
    """Whether `value` is, or holds, something that is kept elsewhere."""
    return type(value) in _WIDE


def is_list(value: object) -> TypeGuard[list[Json] | ListRef]:
    return isinstance(value, list | ListRef)


def mark(value: Json, depth: int = 0) -> Json:
    """`value`, its containers marked that hold references; `value` itself when there are none.

    What is nested deeper than any value may be is left as it is.
    """
    if depth > _DEEPEST:
        return value
    if type(value) is dict:
        members = {key: mark(member, depth + 1) for key, member in value.items()}
        return WideDict(members) if any(map(has_refs, members.values())) else value
    if type(value) is list:
        items = [mark(item, depth + 1) for item in value]
        return WideList(items) if any(map(has_refs, items)) else value
    return value


def refs_in(value: Json) -> Iterator[ListRef | ItemRef | Merged]:
    """The references in a marked value, in order."""
    if isinstance(value, ListRef | ItemRef | Merged):
        yield value
    elif isinstance(value, WideDict):
        for member in value.values():
            yield from refs_in(member)
    elif isinstance(value, WideList):
        for item in value:
            yield from refs_in(item)


def wide_bytes(value: Json) -> int:
    """How many bytes of canonical JSON the lists take that a marked value refers to."""
    total = 0
    for ref in refs_in(value):
        if isinstance(ref, ListRef):
            total += ref.bytes
        elif isinstance(ref, Merged):
            total += sum(part.bytes for _, part in ref.parts if isinstance(part, ListRef))
    return total


def summary(value: Json) -> Any:
    """`value` for a reader's eyes: each reference as `{"$list": {"count": …, "bytes": …}}`."""
    if isinstance(value, ListRef):
        return {"$list": {"count": value.count, "bytes": value.bytes}}
    if isinstance(value, WideDict):
        return {key: summary(member) for key, member in value.items()}
    if isinstance(value, WideList):
        return [summary(item) for item in value]
    return value
