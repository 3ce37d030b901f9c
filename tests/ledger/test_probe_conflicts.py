"""The probe of stores that answer 409 while a race is undecided, and of buckets that keep versions."""

from __future__ import annotations

from collections import Counter

import pytest

from buckets import own_bucket
from cluster.s3 import S3Server
from decurion_ledger import Store
from decurion_ledger.admission import Admission, keep_verdicts
from decurion_ledger.errors import Conflict
from decurion_ledger.layout import CHECKS, FORMAT
from decurion_ledger.patience import SystemClock
from decurion_ledger.probe import Verdict, _Probe, probe
from decurion_ledger.stores import MemoryStore, Put
from faulty import SteppedClock
from test_probe import Passing, verdicts


class Undecided(Passing):
    """Answers each client's first write of a key with 409, as AWS does to writes that meet, whether it won or not."""

    carried_out = False

    def __init__(self, store: Store, shared: dict[str, bytes]) -> None:
        super().__init__(store, shared)
        self.asked: Counter[str] = Counter()

    async def put_new(self, key: str, data: bytes) -> Put:
        self.asked[key] += 1
        if self.asked[key] > 1:
            return await self.store.put_new(key, data)
        if self.carried_out:
            await self.store.put_new(key, data)
        raise Conflict(f"PUT {key}", "ConditionalRequestConflict (409)")


class DecidedAndNotSaid(Undecided):
    carried_out = True


class NeverDecided(Undecided):
    async def put_new(self, key: str, data: bytes) -> Put:
        if "/race/" in key:
            raise Conflict(f"PUT {key}", "ConditionalRequestConflict (409)")
        return await self.store.put_new(key, data)


@pytest.mark.parametrize("kind", [Undecided, DecidedAndNotSaid])
async def test_a_write_that_is_answered_with_409_is_repeated_and_decided_by_what_stands(kind: type[Undecided]) -> None:
    store, shared = MemoryStore(), dict[str, bytes]()
    clients = [kind(store, shared) for _ in range(3)]
    found = await probe(clients, rounds=3, clock=SteppedClock())
    assert Verdict.FAIL not in verdicts(found).values(), found
    assert all(count >= 2 for client in clients for key, count in client.asked.items() if "/race/" in key)


async def test_a_store_that_never_decides_is_told_by_its_answer() -> None:
    store = MemoryStore()
    with pytest.raises(Conflict, match="409"):
        await probe([NeverDecided(store, {})] * 2, rounds=1, clock=SteppedClock())
    assert [info.key async for info in store.list(CHECKS)] == [], "nothing of the check is left"


@pytest.mark.s3
async def test_a_bucket_with_versions_passes_and_what_was_deleted_can_be_written_anew(s3_server: S3Server) -> None:
    """Its deletions leave delete markers, which must make a key neither taken nor readable."""
    with own_bucket(s3_server) as bucket:
        admin = bucket.admin
        admin.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
        store = bucket.opened()
        looking = _Probe([store, store], SystemClock())
        checks = (("exclusive creation", looking.creation), ("deletion", looking.deletion))
        found = await looking.run(checks, lambda name, place, of: None)
        assert set(verdicts(found).values()) == {Verdict.PASS}, found
        held = admin.list_object_versions(Bucket=bucket.name)
        assert held["DeleteMarkers"], "the bucket keeps no versions, and this test shows nothing"
        await keep_verdicts(store, found)
        assert b'"deletion":"pass"' in await store.get(FORMAT)
        await Admission(store).check()
        await store.aclose()
        for kind in ("Versions", "DeleteMarkers"):
            for one in admin.list_object_versions(Bucket=bucket.name).get(kind, ()):
                admin.delete_object(Bucket=bucket.name, Key=one["Key"], VersionId=one["VersionId"])
