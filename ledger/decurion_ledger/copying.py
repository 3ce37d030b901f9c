"""Copying a closed run to another store, and proving the copy.

`final` goes first: from then on nobody can open what is there of the run as an open one, so that a copy that is cut off
can only be completed. Then come the blobs that the log needs, and the log, slot by slot. What is there already with the
same bytes is not sent again, so that a copy goes on where it was cut off.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeVar

from decurion_ledger.admission import Admission
from decurion_ledger.blobs import keep_blob
from decurion_ledger.errors import CopyDiffers, LogCorrupt, NotFound, RunDeleted, RunNotFound, RunOpen
from decurion_ledger.index import Indexer
from decurion_ledger.keys import copy_key
from decurion_ledger.layout import BLOBS, blob_key, final_key, is_derived, run_prefix, tomb_key
from decurion_ledger.lookup import slots_of
from decurion_ledger.patience import Clock, SystemClock, patiently
from decurion_ledger.reader import READING
from decurion_ledger.references import blobs_of
from decurion_ledger.stores.port import Put, Store
from decurion_ledger.verifier import Problem, verify

T = TypeVar("T")
AT_ONCE = 16


@dataclass(slots=True)
class Copied:
    """What a copy sent: the run's own objects, blobs, and the bytes of both; `present` were there already. `problems`
    are those of the copy, found by reading all of it back.
    """

    objects: int = 0
    blobs: int = 0
    present: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)


async def copy_run(
    source: Store,
    run: str,
    target: Store,
    *,
    progress: Callable[[Copied], None] = lambda copied: None,
    clock: Clock | None = None,
    keys: bool = False,
) -> Copied:
    """Copy a closed run and verify the copy; doing it again completes it. `keys`: also the key with which its sensitive
    values are encrypted.

    Raises `RunNotFound`, `RunOpen`, `RunDeleted` (here or there), `CopyDiffers`, `StoreRefused`, `LogCorrupt` when the
    source is not whole, or the error of either store.
    """
    work = _Copy(source, run, target, progress, clock or SystemClock())
    own = await work.own()
    await Admission(target).check()
    await work.run_objects(own)
    if keys:
        await copy_key(source, run, target)
    work.copied.problems = await verify(target, run)
    if not work.copied.problems:
        await Indexer(target, run, clock=clock).closed(await slots_of(target, run))
    return work.copied


class _Copy:
    def __init__(
        self, source: Store, run: str, target: Store, progress: Callable[[Copied], None], clock: Clock
    ) -> None:
        self._source = source
        self._run = run
        self._target = target
        self._progress = progress
        self._clock = clock
        self.copied = Copied()

    async def run_objects(self, own: list[str]) -> None:
        await self._exactly(final_key(self._run))
        await self._blobs()
        await self._some(self._exactly(key) for key in own)

    async def own(self) -> list[str]:
        """The keys of the run but for `final`, the log last. What is derived and may differ is left out."""
        prefix = run_prefix(self._run)
        keys = sorted([info.key async for info in self._source.list(prefix)], key=lambda key: ("/log/" in key, key))
        for store in (self._source, self._target):
            if await self._found(store, tomb_key(self._run)) is not None:
                raise RunDeleted(self._run, store.uri)
        if not keys:
            raise RunNotFound(self._run, self._source.uri)
        if final_key(self._run) not in keys:
            raise RunOpen(self._run, "two stores that hold it could both go on with it")
        return [key for key in keys if key != final_key(self._run) and not is_derived(key)]

    async def _blobs(self) -> None:
        waiting: list[str] = []
        async with aclosing(blobs_of(self._source, self._run)) as needed:
            async for sha in needed:
                waiting.append(sha)
                if len(waiting) == AT_ONCE:
                    await self._some(self._blob(one) for one in waiting)
                    waiting.clear()
        await self._some(self._blob(one) for one in waiting)

    async def _blob(self, sha: str) -> None:
        raw = await self._found(self._source, blob_key(sha))
        if raw is None:
            raise LogCorrupt(blob_key(sha), "the blob is missing in the store that is copied from")
        if hashlib.sha256(raw).hexdigest() != sha:
            # Runs share blobs: other bytes under its name would be taken for theirs.
            raise LogCorrupt(blob_key(sha), "the blob does not have its hash in the store that is copied from")
        present = await self._has(blob_key(sha), len(raw))
        # Also one that is there is stored again in its way: it must not be deleted for its age.
        await self._ask(partial(keep_blob, self._target, sha, raw, clock=self._clock, now=time.time))
        self._count(present=present, size=len(raw), blob=True)

    async def _exactly(self, key: str) -> None:
        data = await self._found(self._source, key)
        if data is None:
            raise RunDeleted(self._run, self._source.uri)
        put = await self._ask(partial(self._target.put_new, key, data))
        if put is Put.EXISTS and await self._found(self._target, key) != data:
            raise CopyDiffers(self._run, f"{self._target.uri}/{key}")
        self._count(present=put is Put.EXISTS, size=len(data), blob=key.startswith(BLOBS))

    def _count(self, *, present: bool, size: int, blob: bool) -> None:
        copied = self.copied
        if present:
            copied.present += 1
        else:
            copied.blobs += blob
            copied.objects += not blob
            copied.bytes += size
        self._progress(copied)

    async def _has(self, key: str, size: int) -> bool:
        try:
            return (await self._ask(partial(self._target.head, key))).size == size
        except NotFound:
            return False

    async def _found(self, store: Store, key: str) -> bytes | None:
        try:
            return await self._ask(partial(store.get, key))
        except NotFound:
            return None

    async def _ask(self, request: Callable[[], Awaitable[T]]) -> T:
        return await patiently(request, patience=READING, clock=self._clock)

    async def _some(self, work: Iterable[Awaitable[None]]) -> None:
        """Do all of it, some at a time, in order. The first failure is raised when those beside it have ended."""
        todo = iter(work)
        while some := list(islice(todo, AT_ONCE)):
            for failure in await asyncio.gather(*some, return_exceptions=True):
                if isinstance(failure, BaseException):
                    raise failure
