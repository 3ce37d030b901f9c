"""Values that are encrypted with the key of their run, and the destruction of that key."""

import pytest

from cluster.s3 import S3Server
from decurion_ledger import Seal, SealKey, Values, erase, key_of, make_key, open_store, unpack
from decurion_ledger.errors import BlobCorrupt, KeyErased, KeyMissing, RunNotFound, ValueSealed, WrongSealKey
from decurion_ledger.stores import Credentials
from decurion_ledger.stores.memory import MemoryStore
from decurion_ledger.stores.s3 import S3Store

SECRET = "4111-1111-1111-1111"
VALUES = [
    {"card": SECRET},
    {"text": SECRET * 1000},
    {"rows": [{"n": n, "card": f"{SECRET}-{n}"} for n in range(3000)]},
    {"rows": [f"{SECRET}{n}" * 400 for n in range(20)], "deep": [[f"{SECRET} {n}" for n in range(5000)]]},
    {"$list": {"value": SECRET}},
]


@pytest.mark.parametrize("value", VALUES, ids=["inline", "blob", "list", "items", "own"])
async def test_nothing_of_a_value_is_stored_in_clear_and_it_is_read_back(value: dict[str, object]) -> None:
    store, seal = MemoryStore(), Seal.generate()
    values = Values(store, "r", seal=seal).sealing()
    kept = await values.keep([value])
    stored = repr(kept.packed).encode() + b"".join([await store.get(i.key) async for i in store.list("")])
    assert SECRET.encode() not in stored
    again = Values(store, "r", seal=seal)
    assert await again.load(await again.unpack({"values": kept.packed}, kept.names[0])) == value
    assert kept.names == [values.name(value)] == [values.name(kept.values[0])]
    assert kept.names[0] != Values(store, "r").name(value)
    with pytest.raises(ValueSealed):
        await unpack(store, {"values": kept.packed}, kept.names[0])
    other = Values(store, "r", seal=Seal.generate())
    with pytest.raises(BlobCorrupt):
        await other.unpack({"values": kept.packed}, kept.names[0])


async def test_equal_values_are_written_once_and_a_short_answer_looks_like_another() -> None:
    seal = Seal.generate()
    values = Values(MemoryStore(), "r", seal=seal).sealing()
    assert await values.pack([{"ill": True}]) == await values.pack([{"ill": True}])
    one, other = seal.close(b'{"ill":true}'), seal.close(b'{"ill":false}')
    assert len(one) == len(other)
    assert one != other


async def test_a_run_without_a_key_cannot_encrypt() -> None:
    with pytest.raises(KeyMissing):
        Values(MemoryStore(), "r").sealing()


async def test_a_key_is_destroyed_with_those_of_the_runs_that_took_its_values() -> None:
    store, by = MemoryStore(), SealKey.generate()
    seal = await make_key(store, "first", by)
    assert await make_key(store, "first", by) == seal == await key_of(store, "first", by)
    assert await make_key(store, "fork", by, seal=seal) == seal
    other = await make_key(store, "other", by)
    assert other != seal
    assert seal.key not in b"".join([await store.get(i.key) async for i in store.list("")])

    dry = await erase(store, "fork", at="now", dry_run=True)
    assert dry.runs == ("first", "fork") or dry.runs == ("fork", "first")
    assert await key_of(store, "first", by) == seal
    await erase(store, "first", at="now")
    for run in ("first", "fork"):
        with pytest.raises(KeyErased):
            await key_of(store, run, by)
        with pytest.raises(KeyErased):
            await make_key(store, run, by)
    assert await key_of(store, "other", by) == other
    assert (await erase(store, "first", at="now")).before
    with pytest.raises(RunNotFound):
        await erase(store, "nobody", at="now")


async def test_another_seal_key_is_named() -> None:
    store, by, other = MemoryStore(), SealKey.generate(), SealKey.generate()
    await make_key(store, "r", by)
    with pytest.raises(WrongSealKey, match=by.id):
        await key_of(store, "r", other)
    assert SealKey.of_text(by.to_text() + "\n", "f") == by
    assert by.to_text() not in repr(by)
    assert repr(Seal.generate()) == "Seal()"
    with pytest.raises(WrongSealKey, match="128"):
        SealKey.of_text("abc", "f")


async def test_on_a_bucket_that_keeps_versions_none_of_the_key_is_left(s3_server: S3Server) -> None:
    credentials = Credentials(s3_server.access_key, s3_server.secret_key)
    store = open_store(
        f"s3://{s3_server.bucket}/versions", endpoint_url=s3_server.endpoint_url, credentials=credentials
    )
    assert isinstance(store, S3Store)
    client, bucket = store._client, store._bucket
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    try:
        by = SealKey.generate()
        await make_key(store, "r", by)
        await erase(store, "r", at="now")
        page = client.list_object_versions(Bucket=bucket, Prefix=f"{store._prefix}keys/")
        left = [one["Key"] for one in (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))]
        assert left
        assert all(key.endswith(".erased") for key in left)
    finally:
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
