"""Collecting what is old: closed runs whose retention is over, and the blobs that no run needs any more.

    one collection       a run that is over gets its tomb, `gc/runs/<run>`: nobody forks from it any more
    a later one, HOLD    its objects are deleted, `final` last, unless an open run has begun to take it over meanwhile
    after either         blobs that no run needs and that are old are announced, looked at again, and deleted

The tomb stays for good. It is the boundary behind which slots may be deleted: a driver that slept through the end of
its run could otherwise take a cleared slot and believe in it. Slots of open runs are never deleted, nor is a blob
younger than the oldest open run: a process that was stopped for days may still name what it stored before. Each step
may be cut off anywhere; the next collection goes on. Several at once do no harm.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import orjson

from decurion_crds.canonical import canonical
from decurion_ledger.blobs import FRESH, SKEW
from decurion_ledger.errors import LogCorrupt, NotFound, StoreError
from decurion_ledger.keys import drop_key
from decurion_ledger.layout import (
    BLOBS,
    GC,
    RUNS,
    SWEEPS,
    TOMBS,
    blob_key,
    final_key,
    needs_key,
    run_of,
    run_prefix,
    slot_key,
    tomb_key,
)
from decurion_ledger.patience import Clock, SystemClock, patiently
from decurion_ledger.reader import READING
from decurion_ledger.record import Record
from decurion_ledger.references import blobs_of
from decurion_ledger.segment import parse
from decurion_ledger.stores.port import ObjectInfo, Store

T = TypeVar("T")

HOLD = 24 * 3600.0
"""Seconds between a run's tomb and the deletion of its objects, and the least age of a blob that is deleted."""
FOREVER = -1
BATCH = 1000
_AT_ONCE = 16
_WINDOW = 300.0

Fate = Literal["open", "kept", "condemned", "deleted", "needed", "broken"]


@dataclass(slots=True)
class RunFate:
    """What becomes of a run. `ended` is when it was closed, in Unix seconds; None of one that is open. `until` is when
    it may go on to the next fate, None for never.
    """

    run: str
    fate: Fate
    why: str
    ended: float | None = None
    until: float | None = None
    objects: int = 0
    bytes: int = 0
    begun: float = 0.0
    tomb: float | None = None


@dataclass(slots=True)
class Collected:
    """What a collection did, or would do: the fate of each run, and the blobs that were deleted. `missing` are blobs
    that a run needs and that are not there. `floor` is the time since which all blobs are kept, `held_by` the open run
    that holds it back, if one does. `unread` says why no blob was deleted: then it is not known which are
    needed.
    """

    runs: list[RunFate] = field(default_factory=list)
    blobs: int = 0
    blob_bytes: int = 0
    kept_blobs: int = 0
    missing: list[str] = field(default_factory=list)
    floor: float = 0.0
    held_by: str = ""
    unread: str = ""


async def collect(
    store: Store,
    *,
    older_than: float,
    dry_run: bool = False,
    hold: float = HOLD,
    now: Callable[[], float] = time.time,
    clock: Clock | None = None,
) -> Collected:
    """Delete what is over: runs that were closed more than `older_than` seconds ago, or the seconds that a run itself
    names, and blobs. With `dry_run` nothing is written; what a later collection would delete counts as it stands now.

    Raises the store's error.
    """
    return await _Collection(store, older_than, dry_run, hold, now, clock or SystemClock()).all()


class _Collection:
    def __init__(
        self,
        store: Store,
        older_than: float,
        dry_run: bool,
        hold: float,
        now: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._store = store
        self._older_than = older_than
        self._dry_run = dry_run
        self._hold = hold
        self._now = now
        self._clock = clock
        self._done = Collected()

    async def all(self) -> Collected:
        done = self._done
        now = await self._store_time()
        done.runs = await self._fates(now)
        if not self._dry_run:
            for one in done.runs:
                if one.fate == "condemned" and one.tomb is None:
                    await self._put_tomb(one.run)
                    one.until = now + self._hold
                elif one.fate == "deleted":
                    await self._delete_run(one.run)
        try:
            await self._blobs(now)
        except LogCorrupt as e:
            done.unread = str(e)
        return done

    async def _store_time(self) -> float:
        """What the store's clock shows, by which all ages are measured."""
        if self._dry_run:
            return self._now()
        key = f"{GC}clock/{secrets.token_hex(8)}"
        await self._ask(lambda: self._store.put(key, b""))
        info = await self._ask(lambda: self._store.head(key))
        await self._ask(lambda: self._store.delete(key))
        return info.modified

    # ------------------------------------------------------------------ runs

    async def _fates(self, now: float) -> list[RunFate]:
        fates = await self._listed()
        taken: dict[str, str] = {}
        for one in fates.values():
            await self._look(one, now, taken)
        for one in fates.values():
            if one.run in taken and one.fate in ("condemned", "deleted"):
                one.fate, one.why, one.until = "needed", f"run {taken[one.run]} is taking it over", None
        return sorted(fates.values(), key=lambda one: one.run)

    async def _listed(self) -> dict[str, RunFate]:
        fates: dict[str, RunFate] = {}
        async for info in self._store.list(RUNS):
            run = run_of(info.key)
            if run is None:
                continue
            one = fates.setdefault(run, RunFate(run, "open", "it has not ended"))
            one.objects += 1
            one.bytes += info.size
            if info.key == final_key(run):
                one.ended = info.modified
            elif info.key == slot_key(run, 0):
                one.begun = info.modified
        async for info in self._store.list(TOMBS):
            run = info.key.removeprefix(TOMBS)
            if run in fates:
                fates[run].tomb = info.modified
        return fates

    async def _look(self, one: RunFate, now: float, taken: dict[str, str]) -> None:
        """Decide about a run; an open one notes in `taken` the run that it takes over."""
        if one.tomb is not None:
            one.until = one.tomb + self._hold
            one.fate = "deleted" if one.until <= now else "condemned"
            one.why = "its retention is over"
            return
        try:
            genesis = await self._genesis(one.run)
        except LogCorrupt as e:
            one.fate, one.why = "broken", e.problem
            return
        if one.ended is None:
            earlier = genesis.envelope.get("earlier")
            if earlier:
                taken[earlier["run"]] = one.run
            return
        own = genesis.envelope.get("retention")
        if own == FOREVER:
            one.fate, one.why = "kept", "it is kept for good"
            return
        keep = self._older_than if own is None else float(own)
        one.until = one.ended + keep
        over = one.until <= now
        one.fate, one.why = ("condemned", "its retention is over") if over else ("kept", "its retention is not over")

    async def _genesis(self, run: str) -> Record:
        key = slot_key(run, 0)
        data = await self._optional(key)
        if data is None:
            raise LogCorrupt(key, "its log has no beginning")
        return parse(data, key).records[0]

    async def _put_tomb(self, run: str) -> None:
        await self._ask(lambda: self._store.put_new(tomb_key(run), canonical({"run": run})))

    async def _delete_run(self, run: str) -> None:
        keys = [info.key async for info in self._store.list(run_prefix(run))]
        final = final_key(run)
        await self._each(self._delete, [key for key in sorted(keys) if key != final])
        if final in keys:
            await self._delete(final)
        await drop_key(self._store, run)

    async def _delete(self, key: str) -> None:
        await self._ask(lambda: self._store.delete(key))

    # ------------------------------------------------------------------ blobs

    async def _blobs(self, now: float) -> None:
        done = self._done
        needed: set[bytes] = set()
        done.floor = now - self._hold
        for one in done.runs:
            if one.fate == "deleted":
                continue
            if one.ended is None and one.begun - FRESH - SKEW < done.floor:
                done.floor, done.held_by = one.begun - FRESH - SKEW, one.run
            async for sha in self._needs(one):
                needed.add(bytes.fromhex(sha))
        old: list[ObjectInfo] = []
        async for info in self._store.list(BLOBS):
            sha = info.key.rpartition("/")[2]
            name = bytes.fromhex(sha) if len(sha) == 64 and info.key == blob_key(sha) else b""
            if name in needed:
                needed.discard(name)
                done.kept_blobs += 1
            elif name and info.modified < done.floor:
                old.append(info)
            else:
                done.kept_blobs += 1
        done.missing = sorted(blob_key(name.hex()) for name in needed)
        if self._dry_run:
            done.blobs, done.blob_bytes = len(old), sum(info.size for info in old)
            return
        await self._end_old_sweeps()
        for start in range(0, len(old), BATCH):
            await self._sweep(old[start : start + BATCH])

    async def _needs(self, one: RunFate) -> AsyncIterator[str]:
        """The blobs that a run needs. What was found of a closed one is kept beside it, bound to its `final`."""
        if one.fate == "broken":
            raise LogCorrupt(run_prefix(one.run), f"{one.why}, so that nobody knows which blobs it needs")
        final = await self._optional(final_key(one.run)) if one.ended is not None else None
        if final is None:
            async for sha in blobs_of(self._store, one.run, clock=self._clock):
                yield sha
            return
        end = hashlib.sha256(final).hexdigest()
        known = _parsed(await self._optional(needs_key(one.run)), end)
        if known is None:
            known = [sha async for sha in blobs_of(self._store, one.run, clock=self._clock)]
            if not self._dry_run:
                content = _needs(known, end)
                await self._ask(lambda: self._store.put(needs_key(one.run), content))
        for sha in known:
            yield sha

    async def _sweep(self, old: list[ObjectInfo]) -> None:
        until = self._now() + _WINDOW
        sweep = f"{SWEEPS}{secrets.token_hex(8)}"
        content = orjson.dumps({"until": until, "keys": [info.key for info in old]})
        await self._ask(lambda: self._store.put_new(sweep, content))
        answered = await self._each(partial(self._delete_blob, until=until), old)
        if all(answered):
            await self._delete(sweep)

    async def _delete_blob(self, info: ObjectInfo, *, until: float) -> bool:
        """Delete a blob that is as old as it was. False when it is not known whether that was carried out."""
        try:
            if (await self._ask(lambda: self._store.head(info.key))).modified != info.modified:
                return True
        except NotFound:
            return True
        if self._now() > until - READING.attempt:
            return True
        try:
            # Never twice: the second could meet a blob that was written anew.
            await self._store.delete(info.key)
        except StoreError:
            return False
        self._done.blobs += 1
        self._done.blob_bytes += info.size
        return True

    async def _end_old_sweeps(self) -> None:
        """Remove the announcements of collections that were cut off, once nobody waits for them."""
        async for info in self._store.list(SWEEPS):
            content = await self._optional(info.key)
            if content is not None and orjson.loads(content)["until"] + SKEW < self._now():
                await self._delete(info.key)

    # ------------------------------------------------------------------ requests

    async def _ask(self, request: Callable[[], Awaitable[T]]) -> T:
        return await patiently(request, patience=READING, clock=self._clock)

    async def _optional(self, key: str) -> bytes | None:
        try:
            return await self._ask(lambda: self._store.get(key))
        except NotFound:
            return None

    async def _each(self, work: Callable[[Any], Awaitable[T]], what: Iterable[Any]) -> list[T]:
        done: list[T] = []
        todo = list(what)
        for start in range(0, len(todo), _AT_ONCE):
            answers = await asyncio.gather(*map(work, todo[start : start + _AT_ONCE]), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                done.append(answer)
        return done


def _needs(blobs: list[str], end: str) -> bytes:
    body = canonical({"blobs": blobs, "final": end})
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode()


def _parsed(content: bytes | None, end: str) -> list[str] | None:
    """The blobs in what was kept beside a run; None when it is not there, damaged, or of another log."""
    if content is None:
        return None
    body, _, checked = content.rpartition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checked:
        return None
    found = orjson.loads(body)
    return list(found["blobs"]) if found["final"] == end else None
