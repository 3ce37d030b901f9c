"""Letting a store in: before a ledger is written to, the store has shown that it keeps conditions.

    no FORMAT        a short check on objects of its own, then FORMAT is written, with what was found of each property
    FORMAT is there  its number must be known, and nothing in it have failed; writing it again must be refused

The second line is what every process does, at every endpoint: a proxy that drops the condition is found also where the
store behind it was let in before. What is written again are the bytes that were read, so that a store without
conditions changes nothing. `decurion storage check` writes what it found into FORMAT, good or bad.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from decurion_ledger.errors import NotFound, NotOffered, StoreRefused
from decurion_ledger.layout import FORMAT
from decurion_ledger.patience import Clock, SystemClock, patiently
from decurion_ledger.probe import Property, Verdict, quick_probe
from decurion_ledger.reader import READING
from decurion_ledger.stores.port import Put, Store

NUMBER = 1
"""The format that this release reads and writes."""


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
        content = await self._read()
        if content is None:
            found = await quick_probe(self._store, clock=self._clock)
            for one in found:
                if one.verdict is Verdict.FAIL:
                    raise StoreRefused(self._store.uri, _clause(one.sentence))
            content = _content(found)
            await self._put_format(content)
        if await self._put_format(content) is Put.CREATED:
            raise StoreRefused(
                self._store.uri,
                "an object that exists was written again: If-None-Match is ignored, by the store or by a proxy before "
                "it, so that two drivers could own one run",
            )

    async def _read(self) -> bytes | None:
        """FORMAT as it stands. Raises `StoreRefused` when it names another format, or a property that failed."""
        try:
            content = await patiently(lambda: self._store.get(FORMAT), patience=READING, clock=self._clock)
        except NotFound:
            return None
        failed = [name for name, verdict in _parsed(self._store, content).items() if verdict == Verdict.FAIL]
        if failed:
            raise StoreRefused(
                self._store.uri,
                f"a check found that it does not keep what a ledger rests on ({', '.join(failed)}); check it again "
                "once that is mended",
            )
        return content

    async def _put_format(self, content: bytes) -> Put:
        try:
            return await patiently(lambda: self._store.put_new(FORMAT, content), patience=READING, clock=self._clock)
        except NotOffered as e:
            raise StoreRefused(self._store.uri, f"it has no conditional writes ({e.reason})") from e


async def keep_verdicts(store: Store, found: Sequence[Property], *, clock: Clock | None = None) -> None:
    """Write what a check found of a store into its FORMAT. Raises `StoreRefused` when that is of another format, or the
    store's error.
    """
    clock = clock or SystemClock()
    try:
        _parsed(store, await patiently(lambda: store.get(FORMAT), patience=READING, clock=clock))
    except NotFound:
        pass
    content = _content(found)
    await patiently(lambda: store.put(FORMAT, content), patience=READING, clock=clock)


def _content(found: Sequence[Property]) -> bytes:
    return orjson.dumps({"format": NUMBER, "checked": {one.name: one.verdict for one in found}}) + b"\n"


def _parsed(store: Store, content: bytes) -> dict[str, Any]:
    """The verdicts in FORMAT, by property. Raises `StoreRefused`."""
    try:
        found = orjson.loads(content)
        number, verdicts = found["format"], found.get("checked", {})
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise StoreRefused(store.uri, f"its object {FORMAT} is none of a ledger") from None
    if number != NUMBER:
        newer = isinstance(number, int) and number > NUMBER
        what = "use a newer release" if newer else f"this release knows {NUMBER} only"
        raise StoreRefused(store.uri, f"its ledger has format {number!r:.20}: {what}")
    return verdicts if isinstance(verdicts, dict) else {}


def _clause(sentence: str) -> str:
    """A sentence as a part of another."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")
