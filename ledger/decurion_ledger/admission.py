"""Letting a store in: before a ledger is written to, the store has shown that it keeps conditions.

    no FORMAT        a short check on objects of its own, then FORMAT is written
    FORMAT is there  its number must be known; writing it again must be refused by the store

The second line is what every process does, at every endpoint: a proxy that drops the condition is found also where the
store behind it was let in before. FORMAT is the same bytes always, so that a store without conditions changes nothing.
"""

from __future__ import annotations

import asyncio

import orjson

from decurion_ledger.errors import NotFound, NotOffered, StoreRefused
from decurion_ledger.layout import FORMAT
from decurion_ledger.patience import Clock, SystemClock, patiently
from decurion_ledger.probe import Verdict, quick_probe
from decurion_ledger.reader import READING
from decurion_ledger.stores.port import Put, Store

NUMBER = 0
"""The format that this release reads and writes. It may change until the ledger is declared stable."""
_CONTENT = orjson.dumps({"format": NUMBER}) + b"\n"


class Admission:
    """One store, for one process: `check` asks it once, and again after a failure."""

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._one_at_a_time = asyncio.Lock()
        self._admitted = False

    async def check(self) -> None:
        """Return when the store may hold a ledger.

        Raises `StoreRefused`, or the store's error when it cannot be asked.
        """
        async with self._one_at_a_time:
            if not self._admitted:
                await self._admit()
                self._admitted = True

    async def _admit(self) -> None:
        if not await self._known():
            for found in await quick_probe(self._store, clock=self._clock):
                if found.verdict is Verdict.FAIL:
                    raise StoreRefused(self._store.uri, _clause(found.sentence))
            await self._put_format()
        if await self._put_format() is Put.CREATED:
            raise StoreRefused(
                self._store.uri,
                "an object that exists was written again: If-None-Match is ignored, by the store or by a proxy before "
                "it, so that two drivers could own one run",
            )

    async def _known(self) -> bool:
        """Whether FORMAT is there. Raises `StoreRefused` when it names another format."""
        try:
            content = await patiently(lambda: self._store.get(FORMAT), patience=READING, clock=self._clock)
        except NotFound:
            return False
        try:
            number = orjson.loads(content)["format"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise StoreRefused(self._store.uri, f"its object {FORMAT} is none of a ledger") from None
        if number != NUMBER:
            raise StoreRefused(
                self._store.uri, f"its ledger has format {number!r:.20}, and this release knows {NUMBER} only"
            )
        return True

    async def _put_format(self) -> Put:
        try:
            return await patiently(lambda: self._store.put_new(FORMAT, _CONTENT), patience=READING, clock=self._clock)
        except NotOffered as e:
            raise StoreRefused(self._store.uri, f"it has no conditional writes ({e.reason})") from e


def _clause(sentence: str) -> str:
    """A sentence as a part of another."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")
