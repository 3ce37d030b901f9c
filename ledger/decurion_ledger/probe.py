"""Whether a store keeps what the ledger rests on, found out by using it: races, conditions, reads, listings.

Modelled on Elasticsearch's repository analysis: several clients with connections of their own work on the same keys,
and what one was told is looked up by the others. Everything lies under a prefix of its own and is deleted at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import ParamSpec, TypeVar

from decurion_ledger.errors import AccessDenied, NotFound, NotOffered, StoreError
from decurion_ledger.layout import CHECKS
from decurion_ledger.patience import Clock, SystemClock, patiently
from decurion_ledger.reader import READING
from decurion_ledger.stores.local import LocalStore
from decurion_ledger.stores.port import ChecksumSent, Put, Range, Store

T = TypeVar("T")
P = ParamSpec("P")

ROUNDS = 20
MANY = 1100
LARGE = 4 * 1024 * 1024
_RANGES: tuple[Range, ...] = ((0, None), (0, 4), (3, 7), (3, None), (9, 10), (8, 99), (10, None), (42, 43), (-3, None))
_NAMES = (
    "case/a",
    "case/A",
    "signs/a.b-c_d",
    "signs/a",
    "signs-/a",
    "signs./a",
    f"long/{'r' * 128}/log/{0:012d}",
    f"blobs/ff/{'f' * 64}",
)


class Verdict(StrEnum):
    """`FAIL`: the ledger must not be kept there. `NOT_OFFERED`: it can be, without what the sentence names."""

    PASS = "pass"
    FAIL = "fail"
    NOT_OFFERED = "not offered"


@dataclass(frozen=True, slots=True)
class Property:
    """One thing that a store promises, whether it was kept, and what was seen."""

    name: str
    verdict: Verdict
    sentence: str


class _Broken(Exception):
    """A promise is not kept; the text is the sentence."""


class _Lacking(Exception):
    """A promise is not made; the text is the sentence."""


Progress = Callable[[str, int, int], None]
"""Is told each property before it is looked at: its name, its place in the row, and how many there are."""


async def probe(
    clients: Sequence[Store],
    *,
    rounds: int = ROUNDS,
    progress: Progress = lambda name, place, of: None,
    clock: Clock | None = None,
) -> list[Property]:
    """All properties of the store that `clients`, two at least, are connected to, each in a way of its own.

    They race for `rounds` keys. Some 1,500 objects are written and deleted. Raises the store's error when it cannot be
    used at all, or stays away for longer than 15 s.
    """
    looking = _Probe(clients, clock or SystemClock())
    return await looking.run(
        (
            ("exclusive creation", looking.creation),
            ("races", lambda: looking.races(rounds)),
            ("missing keys", looking.missing),
            ("read after write", lambda: looking.reads(5)),
            ("list after write", lambda: looking.lists(5)),
            ("whole lists", looking.whole_lists),
            ("list order", looking.list_order),
            ("sizes", looking.sizes),
            ("ranges", looking.ranges),
            ("keys", looking.keys),
            ("large objects", looking.large),
            ("deletion", looking.deletion),
            ("checksums", looking.checksums),
        ),
        progress,
    )


async def quick_probe(store: Store, *, clock: Clock | None = None) -> list[Property]:
    """The properties without which two drivers could own one run, in some twenty requests. Raises as `probe`."""
    looking = _Probe([store] * 2, clock or SystemClock())
    return await looking.run(
        (
            ("exclusive creation", looking.creation),
            ("races", lambda: looking.races(1)),
            ("missing keys", looking.missing),
            ("list after write", lambda: looking.lists(1)),
        ),
        lambda name, place, of: None,
    )


class _Probe:
    def __init__(self, clients: Sequence[Store], clock: Clock) -> None:
        self._clients = clients
        self._clock = clock
        self._prefix = f"{CHECKS}{secrets.token_hex(8)}/"
        self._written: set[str] = set()

    async def run(
        self, checks: Sequence[tuple[str, Callable[[], Awaitable[str]]]], progress: Progress
    ) -> list[Property]:
        found = []
        self._written.add(self._prefix + "reached")
        await self._ask(self._clients[0].put, self._prefix + "reached", b"")
        try:
            for place, (name, check) in enumerate(checks):
                progress(name, place, len(checks))
                found.append(await _judged(name, check))
        finally:
            left = await self._clean_up()
        if left:
            text = f"{left} objects of this check are left under {self._clients[0].uri}/{self._prefix}; remove them."
            found.append(Property("clean-up", Verdict.NOT_OFFERED, text))
        return found

    async def _ask(self, verb: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs) -> T:
        return await patiently(partial(verb, *args, **named), patience=READING, clock=self._clock)

    async def _write(self, client: Store, key: str, data: bytes) -> None:
        """A new object, of which nobody else writes."""
        if not await self._claim(client, key, data):
            raise _Broken(
                f"the new key {key.removeprefix(self._prefix)} was taken already, or read back with other bytes."
            )

    async def _claim(self, client: Store, key: str, data: bytes) -> bool:
        """Whether `data`, unlike all others', is what stands under `key`, by what the store says."""
        self._written.add(key)
        if await self._ask(client.put_new, key, data) is Put.CREATED:
            return True
        try:
            return await self._ask(client.get, key) == data
        except NotFound:
            raise _Broken("a write was refused because its key exists, but the key cannot be read.") from None

    async def _expect(self, client: Store, key: str, data: bytes, when: str) -> None:
        try:
            found = await self._ask(client.get, key)
        except NotFound:
            raise _Broken(f"an object was not found {when}.") from None
        if found != data:
            raise _Broken(f"an object of {len(data):,} bytes was read as other {len(found):,} bytes {when}.")

    async def _absent(self, what: str, verb: Callable[P, Awaitable[object]], *args: P.args, **named: P.kwargs) -> None:
        try:
            await self._ask(verb, *args, **named)
        except NotFound:
            return
        except AccessDenied as e:
            raise _Broken(
                f"{what} is answered with {e.reason} instead of 404; allow listing (s3:ListBucket), for only then does "
                "a store say that a key is not there."
            ) from None
        raise _Broken(f"{what} is answered as if there were one.")

    async def _names(self, client: Store, prefix: str, after: str = "") -> list[str]:
        async def listed() -> list[str]:
            return [info.key async for info in client.list(self._prefix + prefix, after and self._prefix + after)]

        return [key.removeprefix(self._prefix) for key in await self._ask(listed)]

    async def _delete(self, key: str) -> None:
        try:
            await self._ask(self._clients[0].delete, key)
        except AccessDenied as e:
            raise _Lacking(
                f"deleting is answered with {e.reason}: runs are kept without it, but nothing can be cleaned up."
            ) from None

    async def _clean_up(self) -> int:
        """How many objects could not be deleted."""
        store = self._clients[0]
        keys = {self._prefix + name for name in await self._names(store, "")} | self._written
        for start in range(0, len(keys), 50):
            try:
                await asyncio.gather(*(store.delete(key) for key in sorted(keys)[start : start + 50]))
            except StoreError:
                return len(keys) - start
        if isinstance(store, LocalStore):
            await store.prune(self._prefix)
        return 0

    # ------------------------------------------------------------------ properties: each gives its sentence

    async def creation(self) -> str:
        key = self._prefix + "creation"
        first, *others = self._clients
        await self._write(first, key, b"first")
        for number, client in enumerate(others):
            answer = await self._ask(client.put_new, key, b"later %d" % number)
            if answer is Put.CREATED:
                raise _Broken(
                    "a second conditional write took the place of the first: If-None-Match is ignored, by the store or "
                    "by a proxy before it, so that two drivers could own one run."
                )
            await self._expect(client, key, b"first", "after a later write to it was refused")
        return f"{len(others)} later writers of one key were refused (412), and its first bytes stayed."

    async def races(self, rounds: int) -> str:
        for number in range(rounds):
            key = f"{self._prefix}race/{number}"
            bids = [b"%d of round %d " % (i, number) * 64 for i in range(len(self._clients))]
            won = await asyncio.gather(
                *(self._claim(client, key, bid) for client, bid in zip(self._clients, bids, strict=True))
            )
            if won.count(True) != 1:
                raise _Broken(
                    f"of {len(won)} clients that wrote one new key at once, {won.count(True)} were told that it is "
                    "theirs; it must be one, else two drivers could own one run."
                )
            for client in self._clients:
                await self._expect(client, key, bids[won.index(True)], "after its race was decided")
        return f"in {rounds} races of {len(self._clients)} clients for a new key exactly one won."

    async def missing(self) -> str:
        key = self._prefix + "nobody/wrote/this"
        for client in self._clients:
            await self._absent("reading a key that is not there", client.get, key)
            await self._absent("reading a part of a key that is not there", client.get, key, (0, 3))
            await self._absent("asking for a key that is not there", client.head, key)
        return "a key that is not there is answered with 404, whole, in part and by HEAD."

    async def reads(self, rounds: int) -> str:
        for number in range(rounds):
            key = f"{self._prefix}read/{number}"
            writer = self._clients[number % len(self._clients)]
            for client in self._clients:
                await self._absent("reading a key that is not there yet", client.get, key)
            await self._write(writer, key, b"new")
            for client in self._clients:
                await self._expect(client, key, b"new", "after its write was answered")
            await self._ask(writer.put, key, b"newer")
            for client in self._clients:
                await self._expect(client, key, b"newer", "after a write over it was answered")
        return "what one client wrote was read by all at once, also where they had found nothing or something older."

    async def lists(self, rounds: int) -> str:
        names = [f"list/{number}" for number in range(rounds)]
        for number, name in enumerate(names):
            await self._write(self._clients[number % len(self._clients)], self._prefix + name, b"")
            for client in self._clients:
                if sorted(await self._names(client, "list/")) != sorted(names[: number + 1]):
                    raise _Broken("a list did not show what was written just before, or showed something else.")
        return "what one client wrote was listed for all at once."

    async def whole_lists(self) -> str:
        names = [f"many/{number:05d}" for number in range(MANY)]
        for start in range(0, MANY, 50):
            some = names[start : start + 50]
            clients = (self._clients[i % len(self._clients)] for i in range(len(some)))
            await asyncio.gather(
                *(self._write(client, self._prefix + name, b"") for client, name in zip(clients, some, strict=True))
            )
        for client in self._clients[:2]:
            found = sorted(await self._names(client, "many/"))
            if found != names:
                raise _Broken(f"a list of {MANY:,} keys showed {len(found):,}, {len(set(found)):,} of them different.")
            if sorted(await self._names(client, "many/", names[-51])) != names[-50:]:
                raise _Broken("a list from a key on did not show the keys after it.")
        return f"all of {MANY:,} keys were listed, over several pages and from a key on."

    async def list_order(self) -> str:
        names = await self._names(self._clients[0], "many/")
        if names != sorted(names):
            raise _Lacking("lists do not come in the order of their keys; nothing here needs it.")
        return "lists come in the order of their keys."

    async def sizes(self) -> str:
        for size in (0, 1, 70_000):
            key = f"{self._prefix}size/{size}"
            await self._write(self._clients[0], key, b"x" * size)
            for client in self._clients:
                info = await self._ask(client.head, key)
                if info.size != size:
                    raise _Broken(f"the size of an object of {size:,} bytes is given as {info.size:,}.")
        return "HEAD gives the size of an object."

    async def ranges(self) -> str:
        key, data = self._prefix + "ranges", b"0123456789"
        await self._write(self._clients[0], key, data)
        for asked in _RANGES:
            got = await self._ask(self._clients[-1].get, key, asked)
            if got != data[slice(*asked)]:
                raise _Broken(
                    f"bytes {asked[0]} to {asked[1]} of an object of 10 were answered with {len(got)} others."
                )
        return "parts of objects are read from the start, from the middle and from the end."

    async def keys(self) -> str:
        for name in _NAMES:
            await self._write(self._clients[0], self._prefix + "names/" + name, name.encode())
        for name in _NAMES:
            await self._expect(self._clients[-1], self._prefix + "names/" + name, name.encode(), "under its own key")
        if sorted(await self._names(self._clients[-1], "names/")) != sorted("names/" + name for name in _NAMES):
            raise _Broken("keys were listed under other names than they were written under.")
        return "keys of the ledger's signs and lengths are kept apart, also those that differ in case alone."

    async def large(self) -> str:
        key, data = self._prefix + "large", os.urandom(LARGE)
        await self._write(self._clients[0], key, data)
        await self._expect(self._clients[-1], key, data, "after its write was answered")
        if await self._ask(self._clients[-1].get, key, (-100, None)) != data[-100:]:
            raise _Broken("the last bytes of an object of 4 MiB were read as others.")
        return "an object of 4 MiB comes back as it was written."

    async def deletion(self) -> str:
        key = self._prefix + "deleted"
        await self._write(self._clients[0], key, b"before")
        await self._delete(key)
        for client in self._clients:
            await self._absent("reading a key that was deleted", client.get, key)
        if await self._names(self._clients[-1], "deleted"):
            raise _Broken("a key that was deleted is still listed.")
        await self._delete(key)
        await self._write(self._clients[-1], key, b"after")
        await self._expect(self._clients[0], key, b"after", "after it was deleted and written anew")
        return "a deleted key is gone for all, deleting it again is no error, and it can be written anew."

    async def checksums(self) -> str:
        client, key = self._clients[0], self._prefix + "corrupted"
        if not isinstance(client, ChecksumSent):
            raise _Lacking("bytes do not travel over a network; what is read is checked by its hash.")
        try:
            await client.put_claiming(key, b"changed on the way", hashlib.sha256(b"as it was sent").digest())
        except StoreError:
            await self._absent("reading what was refused for its checksum", client.get, key)
            return "a body that does not have the SHA-256 it was sent with is refused."
        raise _Lacking("a body that does not have the SHA-256 it was sent with is kept; only reading finds it out.")


async def _judged(name: str, check: Callable[[], Awaitable[str]]) -> Property:
    try:
        return Property(name, Verdict.PASS, _capital(await check()))
    except _Broken as e:
        return Property(name, Verdict.FAIL, _capital(str(e)))
    except NotFound:
        return Property(name, Verdict.FAIL, "An object was not found after its write was answered.")
    except NotOffered as e:
        return Property(name, Verdict.FAIL, f"The store does not offer what is asked for ({e.reason}).")
    except _Lacking as e:
        return Property(name, Verdict.NOT_OFFERED, _capital(str(e)))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
