"""What several writes of one channel make: the rules of `merge`, and lists that a rule makes of lists.

Nothing here depends on time: the parts come in the order of their writers in the file (or in that of `order`), the
items of each in their own. Two items are equal when their canonical JSON is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from decurion_crds.canonical import Json, canonical
from decurion_crds.compiled import MergeRule
from decurion_crds.errors import MergeRefused, ValueRefused
from decurion_crds.values import normalise

LISTS: tuple[MergeRule, ...] = ("append", "union", "mergeByKey")
"""Rules of channels that hold a list."""
NUMBERS: tuple[MergeRule, ...] = ("sum", "min", "max")
"""Rules of channels that hold a number."""
INITIAL: Mapping[str, Json] = {"append": [], "union": [], "mergeByKey": [], "sum": 0}
"""What a channel holds before its first write where it has no `initial`; None for the other rules."""

_MAX_SHOWN = 60


def in_order(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """`names`, those of `order` first and as they stand there, the others behind them as they came."""
    given = list(names)
    return [*(name for name in order if name in given), *(name for name in given if name not in order)]


def number(rule: str, channel: str, parts: Sequence[Json], schema: Mapping[str, Any]) -> Json:
    """What `sum`, `min` or `max` makes of numbers; None of no numbers. A sum of numbers is rounded once, whatever their
    order. Raises `MergeRefused` for a sum that no reader of JSON would read.
    """
    if not parts:
        return None
    if rule != "sum":
        return normalise(min(parts) if rule == "min" else max(parts), schema)
    try:
        total = sum(parts) if all(isinstance(part, int) for part in parts) else math.fsum(parts)
        return normalise(total, schema)
    except (OverflowError, ValueRefused) as error:
        remedy = "declare type: number for it, or write smaller numbers"
        raise MergeRefused(f"the sum in channel {channel} is beyond what a number can hold; {remedy}") from error


class Selection:
    """Which items of several lists a rule keeps: `kept` are their positions among all that were offered, in order.

    `mergeByKey` leaves an item where its key stood first, whichever of the items of that key it keeps.
    """

    def __init__(self, channel: str, rule: str, *, key: str = "", prefer: str = "first") -> None:
        self._channel = channel
        self._rule = rule
        self._key = key
        self._prefer = prefer
        self._count = 0
        self._places: dict[bytes, int] = {}
        """Equal items, or items of one key → their place in `kept`."""
        self._first: dict[bytes, tuple[str, bytes]] = {}
        """Key → who wrote it first, and what; for `prefer: error` only."""
        self.kept: list[int] = []

    def offer(self, writer: str, item: Json, identity: bytes) -> None:
        """Take the next item. Items are equal iff their `identity` is. Raises `MergeRefused`."""
        position, self._count = self._count, self._count + 1
        if self._rule == "append":
            self.kept.append(position)
            return
        name = identity if self._rule == "union" else canonical(item[self._key])
        place = self._places.setdefault(name, len(self.kept))
        if place == len(self.kept):
            self.kept.append(position)
        elif self._rule == "mergeByKey" and self._prefer == "last":
            self.kept[place] = position
        if self._rule == "mergeByKey" and self._prefer == "error":
            before, what = self._first.setdefault(name, (writer, identity))
            if what != identity:
                raise MergeRefused(_conflict(self._channel, self._key, name, before, writer))


def _conflict(channel: str, key: str, name: bytes, first: str, second: str) -> str:
    shown = name.decode()
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    who = f"{first} wrote two different items" if first == second else f"{first} and {second} wrote different items"
    remedy = "correct one of them, or declare prefer: first or prefer: last"
    return f"{who} with {key} {shown} to channel {channel}, whose merge says prefer: error; {remedy}"


def one_list(
    channel: str, rule: str, parts: Sequence[tuple[str, Sequence[Json]]], *, key: str = "", prefer: str = "first"
) -> list[Json]:
    """What a rule makes of lists that are all at hand, given with who wrote them. Raises `MergeRefused`."""
    if rule == "append":
        return [item for _, part in parts for item in part]
    selection = Selection(channel, rule, key=key, prefer=prefer)
    items: list[Json] = []
    for writer, part in parts:
        for item in part:
            selection.offer(writer, item, canonical(item))
            items.append(item)
    return [items[position] for position in selection.kept]
