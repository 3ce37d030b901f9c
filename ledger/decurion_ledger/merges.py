"""Wide lists that a channel's rule makes one list of, piece by piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Protocol

from decurion_crds.canonical import Json
from decurion_crds.merging import Selection
from decurion_crds.wide import ItemRef, ListRef, Merged
from decurion_ledger.lists import ListBuilder

_SOME = 256
"""Items that are fetched before what is built of them is stored."""


class Lists(Protocol):
    """What of `Values` is needed here."""

    def chunks(self, ref: ListRef) -> AsyncIterator[list[Json]]: ...
    def item(self, ref: ItemRef) -> Awaitable[Json]: ...
    def builder(self) -> ListBuilder: ...
    def extend(self, builder: ListBuilder, items: Iterable[Json]) -> Awaitable[None]: ...
    def finish(self, builder: ListBuilder) -> Awaitable[ListRef | list[Json]]: ...
    def identity(self, item: Json) -> bytes: ...


async def merged(lists: Lists, value: Merged) -> ListRef | list[Json]:
    """One list of the parts. Raises `MergeRefused`.

    Memory is bounded by a chunk, and by some bytes for each item where equal ones have to be found.
    """
    builder = lists.builder()
    if value.rule == "append":
        async for _, items in _parts(lists, value):
            await lists.extend(builder, items)
        return await lists.finish(builder)
    selection = Selection(value.channel, value.rule, key=value.key, prefer=value.prefer)
    async for writer, items in _parts(lists, value):
        for item in items:
            selection.offer(writer, item, lists.identity(item))
    for start in range(0, len(selection.kept), _SOME):
        some = [await _at(lists, value, position) for position in selection.kept[start : start + _SOME]]
        await lists.extend(builder, some)
    return await lists.finish(builder)


async def _parts(lists: Lists, value: Merged) -> AsyncIterator[tuple[str, list[Json]]]:
    for writer, part in value.parts:
        if isinstance(part, ListRef):
            async for items in lists.chunks(part):
                yield writer, items
        else:
            yield writer, part


async def _at(lists: Lists, value: Merged, position: int) -> Json:
    """The item at a position of all parts together."""
    starts = [0]
    for _, part in value.parts:
        starts.append(starts[-1] + (part.count if isinstance(part, ListRef) else len(part)))
    number = bisect_right(starts, position) - 1
    part, place = value.parts[number][1], position - starts[number]
    return await lists.item(ItemRef(part, place)) if isinstance(part, ListRef) else part[place]
