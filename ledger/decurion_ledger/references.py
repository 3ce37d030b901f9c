"""Which blobs a run needs: those that its records name, and those of the wide lists in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any

import orjson

from decurion_ledger.errors import BlobCorrupt, NotFound
from decurion_ledger.layout import blob_key
from decurion_ledger.lists import FOLDED
from decurion_ledger.patience import Clock, SystemClock, patiently
from decurion_ledger.reader import READING, read_log
from decurion_ledger.record import Record
from decurion_ledger.stores.port import Store

AT_ONCE = 16


async def blobs_of(store: Store, run: str, *, clock: Clock | None = None) -> AsyncGenerator[str, None]:
    """The hashes of all blobs that the run's log needs, each once, in the order in which they are met.

    Blobs that hold references are read on the way. Raises `RunNotFound`, `LogCorrupt` (`BlobCorrupt` for a blob that is
    needed to find others) or the store's error.
    """
    walk = _Walk(store, clock or SystemClock())
    async with aclosing(read_log(store, run, clock=clock)) as log:
        async for _, record in log:
            for sha in walk.record(record):
                yield sha
            while walk.todo:
                for sha in await walk.step():
                    yield sha


class _Walk:
    """`todo` are blobs whose content may name others, with how that is read."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: set[str] = set()
        self.todo: dict[str, Callable[[Any], Iterator[tuple[str, _Read | None]]]] = {}

    def record(self, record: Record) -> list[str]:
        return self._new(_of_values((record.envelope.get("values") or {}).values()))

    async def step(self) -> list[str]:
        some = [(sha, self.todo.pop(sha)) for sha in list(self.todo)[:AT_ONCE]]
        contents = await asyncio.gather(*(self._content(sha) for sha, _ in some))
        return [sha for (_, read), held in zip(some, contents, strict=True) for sha in self._new(read(held))]

    def _new(self, found: Iterable[tuple[str, _Read | None]]) -> list[str]:
        new = []
        for sha, read in found:
            if sha not in self._seen:
                self._seen.add(sha)
                new.append(sha)
                if read is not None:
                    self.todo[sha] = read
        return new

    async def _content(self, sha: str) -> Any:
        key = blob_key(sha)

        def ask() -> Awaitable[bytes]:
            return self._store.get(key)

        try:
            return orjson.loads(await patiently(ask, patience=READING, clock=self._clock))
        except NotFound as e:
            raise BlobCorrupt(key, "the blob is missing") from e
        except orjson.JSONDecodeError as e:
            raise BlobCorrupt(key, "the blob is no JSON") from e


_Read = Callable[[Any], Iterator[tuple[str, "_Read | None"]]]


def _of_values(held: Iterable[Any]) -> Iterator[tuple[str, _Read | None]]:
    for one in held:
        if "sealed" in one:
            if "blob" in one:
                yield one["blob"], None
            for index in one.get("lists", ()):
                yield index, _of_index
        elif "blob" in one:
            # Only a stored form with references in it says how long the plain one is.
            yield one["blob"], _of_stored if "size" in one else None
        elif "tree" in one:
            yield from _of_stored(one["tree"])


def _of_stored(stored: Any) -> Iterator[tuple[str, _Read | None]]:
    if isinstance(stored, list):
        for item in stored:
            yield from _of_stored(item)
    elif isinstance(stored, dict):
        held = stored.get(FOLDED)
        if len(stored) == 1 and isinstance(held, dict) and "index" in held:
            yield held["index"], _of_index
        else:
            for member in stored.values():
                yield from _of_stored(member)


def _of_index(index: Any) -> Iterator[tuple[str, _Read | None]]:
    sealed = index.get("sealed") is True
    for sha, _ in index["chunks"]:
        yield sha, None if sealed else _of_chunk
    if sealed:
        for sha in index["far"]:
            yield sha, None
        for sha in index["lists"]:
            yield sha, _of_index


def _of_chunk(entries: Any) -> Iterator[tuple[str, _Read | None]]:
    for entry in entries:
        if isinstance(entry, list):
            yield from _of_stored(entry[0])
        else:
            yield entry["blob"], _of_stored
