"""The probe of stores: good ones pass, and each promise that is broken is found under its name."""

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import orjson
import pytest

from cluster.s3 import S3Server
from decurion_ledger.admission import Admission, keep_verdicts
from decurion_ledger.errors import NotFound, NotOffered, StoreRefused
from decurion_ledger.layout import FORMAT
from decurion_ledger.probe import Property, Verdict, probe, quick_probe
from decurion_ledger.stores import Credentials, MemoryStore, ObjectInfo, Put, Range, Store, open_store
from dropping import DroppingGateway


class Passing:
    """`store` as it is; what a bad store does otherwise is in its children. Clients of one store share `shared`."""

    def __init__(self, store: Store, shared: dict[str, bytes]) -> None:
        self.uri = store.uri
        self.store = store
        self.shared = shared

    async def put_new(self, key: str, data: bytes) -> Put:
        return await self.store.put_new(key, data)

    async def put(self, key: str, data: bytes) -> None:
        await self.store.put(key, data)

    async def get(self, key: str, range: Range | None = None) -> bytes:
        return await self.store.get(key, range)

    async def head(self, key: str) -> ObjectInfo:
        return await self.store.head(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self.store.list(prefix, after):
            yield info

    async def delete(self, key: str) -> None:
        await self.store.delete(key)

    async def aclose(self) -> None:
        await self.store.aclose()


class Unconditional(Passing):
    async def put_new(self, key: str, data: bytes) -> Put:
        await self.store.put(key, data)
        return Put.CREATED


class Racy(Passing):
    """Looks and then writes: who looks before another has written believes to have won."""

    async def put_new(self, key: str, data: bytes) -> Put:
        if "/race/" not in key:
            return await self.store.put_new(key, data)
        await self.store.put(key, data)
        return Put.CREATED


class NoConditions(Passing):
    async def put_new(self, key: str, data: bytes) -> Put:
        raise NotOffered(f"PUT {key}", "NotImplemented (501)")


class Stale(Passing):
    """Remembers what it read, also that there was nothing."""

    async def get(self, key: str, range: Range | None = None) -> bytes:
        if "/read/" not in key:
            return await self.store.get(key, range)
        if self.shared.get(key, b"") == b"nothing":
            raise NotFound(f"GET {key}", "no such object")
        try:
            return await self.store.get(key, range)
        except NotFound:
            self.shared[key] = b"nothing"
            raise


class OlderContent(Passing):
    async def get(self, key: str, range: Range | None = None) -> bytes:
        return self.shared.setdefault(key, await self.store.get(key, range))


class Forgetful(Passing):
    """Leaves the last key of a list out."""

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        found = [info async for info in self.store.list(prefix, after)]
        for info in found[:-1]:
            yield info


class OnePage(Passing):
    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        found = [info async for info in self.store.list(prefix, after)]
        for info in found[:1000]:
            yield info


class Truncating(Passing):
    async def get(self, key: str, range: Range | None = None) -> bytes:
        return (await self.store.get(key, range))[: 1024 * 1024]


class WholeOnly(Passing):
    async def get(self, key: str, range: Range | None = None) -> bytes:
        return await self.store.get(key)


class Folding(Passing):
    """Keys that differ in case alone are one, as on some disks."""

    async def put_new(self, key: str, data: bytes) -> Put:
        return await self.store.put_new(key.lower(), data)

    async def get(self, key: str, range: Range | None = None) -> bytes:
        return await self.store.get(key.lower(), range)


class Undead(Passing):
    """A key that was deleted is taken for ever."""

    async def delete(self, key: str) -> None:
        self.shared[key] = b""
        await self.store.delete(key)

    async def put_new(self, key: str, data: bytes) -> Put:
        return Put.EXISTS if key in self.shared else await self.store.put_new(key, data)


class NeverMissing(Passing):
    async def get(self, key: str, range: Range | None = None) -> bytes:
        try:
            return await self.store.get(key, range)
        except NotFound:
            return b""


class Sizeless(Passing):
    async def head(self, key: str) -> ObjectInfo:
        await self.store.head(key)
        return ObjectInfo(key, 0)


def clients_of(kind: Callable[[Store, dict[str, bytes]], Store], count: int = 3) -> Sequence[Store]:
    store, shared = MemoryStore(), dict[str, bytes]()
    return [kind(store, shared) for _ in range(count)]


def verdicts(found: Sequence[Property]) -> dict[str, Verdict]:
    return {one.name: one.verdict for one in found}


async def test_memory_passes_and_keeps_nothing_of_the_check() -> None:
    store = MemoryStore()
    told: list[tuple[str, int, int]] = []
    found = await probe([store] * 3, progress=lambda *step: told.append(step))
    assert set(verdicts(found).values()) == {Verdict.PASS, Verdict.NOT_OFFERED}
    assert [one.name for one in found if one.verdict is Verdict.NOT_OFFERED] == ["checksums"]
    assert all(one.sentence.endswith(".") and not one.sentence[0].islower() for one in found)
    assert [name for name, _, _ in told] == [one.name for one in found]
    assert [info.key async for info in store.list("")] == []


async def test_the_document_says_what_each_property_means() -> None:
    text = (Path(__file__).parents[2] / "docs" / "storage.md").read_text()
    for one in await probe([MemoryStore()] * 2, rounds=1):
        assert f"\n| {one.name} |" in text


async def test_a_folder_passes_and_is_left_without_the_check_s_folders(tmp_path) -> None:
    stores = [open_store(str(tmp_path / "ledger")) for _ in range(3)]
    found = await probe(stores)
    assert Verdict.FAIL not in verdicts(found).values(), found
    assert sorted(path.name for path in (tmp_path / "ledger").rglob("*")) == [".tmp", "checks"]
    for store in stores:
        await store.aclose()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Unconditional, "exclusive creation"),
        (Racy, "races"),
        (NoConditions, "exclusive creation"),
        (NeverMissing, "missing keys"),
        (Stale, "read after write"),
        (OlderContent, "read after write"),
        (Forgetful, "list after write"),
        (OnePage, "whole lists"),
        (Sizeless, "sizes"),
        (WholeOnly, "ranges"),
        (Folding, "keys"),
        (Truncating, "large objects"),
        (Undead, "deletion"),
    ],
)
async def test_a_broken_promise_is_found_under_its_name(kind, name: str) -> None:
    clients = clients_of(kind)
    found = await probe(clients)
    assert verdicts(found)[name] is Verdict.FAIL
    assert [info.key async for info in clients[0].store.list("")] == []


@pytest.mark.parametrize("kind", [Unconditional, NoConditions, NeverMissing, Forgetful])
async def test_a_store_that_breaks_promises_is_not_let_in(kind) -> None:
    store = clients_of(kind)[0]
    with pytest.raises(StoreRefused, match=r"memory://.*; no run is written to it"):
        await Admission(store).check()
    with pytest.raises(NotFound):
        await store.store.get(FORMAT)


async def test_a_store_is_checked_once_and_again_at_every_way_to_it() -> None:
    good = MemoryStore()
    await Admission(good).check()
    content = await good.get(FORMAT)
    await Admission(good).check()
    with pytest.raises(StoreRefused, match="If-None-Match is ignored"):
        await Admission(Unconditional(good, {})).check()
    assert await good.get(FORMAT) == content
    assert [info.key async for info in good.list("")] == [FORMAT]


async def test_a_ledger_of_another_format_is_not_let_in_nor_changed() -> None:
    for content in (b'{"format": 7}', b"[]", b"\xff"):
        store = MemoryStore()
        await store.put(FORMAT, content)
        with pytest.raises(StoreRefused, match=r"format 7|none of a ledger"):
            await Admission(store).check()
        assert await store.get(FORMAT) == content


async def test_what_a_check_found_stays_in_the_store_and_decides_until_the_next() -> None:
    store = MemoryStore()
    await Admission(store).check()
    quick = orjson.loads(await store.get(FORMAT))["checked"]
    assert quick["exclusive creation"] == "pass"
    await keep_verdicts(store, await probe(clients_of(Truncating), rounds=1))
    with pytest.raises(StoreRefused, match=r"a check found .* \(large objects\)"):
        await Admission(store).check()
    await keep_verdicts(store, await probe([store] * 2, rounds=1))
    await Admission(store).check()
    assert orjson.loads(await store.get(FORMAT))["checked"]["list order"] == "pass"


async def test_a_check_does_not_touch_the_format_of_another_release() -> None:
    store = MemoryStore()
    await store.put(FORMAT, b'{"format": 7}')
    with pytest.raises(StoreRefused, match="use a newer release"):
        await keep_verdicts(store, await probe([store] * 2, rounds=1))
    assert await store.get(FORMAT) == b'{"format": 7}'


class Unsorted(Passing):
    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        for info in reversed([info async for info in self.store.list(prefix, after)]):
            yield info


async def test_lists_out_of_order_are_told_and_harmless() -> None:
    found = verdicts(await probe(clients_of(Unsorted), rounds=1))
    assert [name for name, verdict in found.items() if verdict is not Verdict.PASS] == ["list order", "checksums"]


async def test_a_refused_store_is_asked_again() -> None:
    store = Passing(MemoryStore(), {})
    await store.store.put(FORMAT, b"[]")
    admission = Admission(store)
    with pytest.raises(StoreRefused):
        await admission.check()
    await store.store.delete(FORMAT)
    await admission.check()


@pytest.mark.s3
async def test_a_real_server_passes_and_is_refused_behind_a_gateway_that_drops_the_condition(
    s3_server: S3Server,
) -> None:
    keys = Credentials(s3_server.access_key, s3_server.secret_key)
    uri = s3_server.uri(secrets.token_hex(6))
    direct = [open_store(uri, endpoint_url=s3_server.endpoint_url, credentials=keys) for _ in range(3)]
    assert set(verdicts(await probe(direct, rounds=3)).values()) == {Verdict.PASS}
    await Admission(direct[0]).check()
    with DroppingGateway(s3_server) as gateway:
        through = open_store(uri, endpoint_url=gateway.endpoint_url, credentials=keys)
        assert verdicts(await quick_probe(through))["exclusive creation"] is Verdict.FAIL
        for fresh in ("", "/fresh"):
            other = open_store(uri + fresh, endpoint_url=gateway.endpoint_url, credentials=keys)
            with pytest.raises(StoreRefused, match="If-None-Match is ignored"):
                await Admission(other).check()
            await other.aclose()
        await through.aclose()
    assert [info.key async for info in direct[0].list("")] == [FORMAT]
    for store in direct:
        await store.aclose()
