"""Ledgers of released formats stay readable: verified, read, looked up, copied, opened; later formats are refused."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import orjson
import pytest

from decurion_crds.wide import ListRef
from decurion_ledger import LogWriter, SealKey, Values, find, key_of, open_store, read_log, verify
from decurion_ledger.copying import copy_run
from decurion_ledger.errors import NewerFormat, SegmentCorrupt, StoreRefused
from decurion_ledger.layout import FORMAT, slot_key
from decurion_ledger.segment import FORMAT as NUMBER
from decurion_ledger.segment import parse
from decurion_ledger.signing import public_keys
from decurion_ledger.stores import MemoryStore, Store
from decurion_ledger.workspace import Objects, Version, files_of
from decurion_ledger.workspace.pack import PACK_FORMAT

GOLDEN = Path(__file__).parent / "golden"
FORMATS = sorted(path.name for path in GOLDEN.glob("format-*") if path.is_dir())


@pytest.fixture(params=FORMATS)
async def golden(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Store, dict]]:
    """A copy of a golden ledger, and what it holds."""
    shutil.copytree(GOLDEN / request.param, tmp_path / "ledger")
    store = open_store(str(tmp_path / "ledger"))
    yield store, orjson.loads((GOLDEN / f"{request.param}.json").read_bytes())
    await store.aclose()


def test_the_format_that_is_written_has_its_golden_ledger() -> None:
    assert f"format-{NUMBER}" in FORMATS


async def test_a_golden_ledger_is_verified_against_the_key_that_appointed_its_driver(golden) -> None:
    store, _ = golden
    assert await verify(store, "golden", roots=public_keys((GOLDEN / "root.pub").read_bytes(), "root.pub")) == []
    assert [one.code for one in await verify(store, "golden", roots=["ab" * 32])] != []


async def test_every_record_of_a_golden_ledger_is_read_and_found(golden) -> None:
    store, held = golden
    rows = [[slot, r.type, r.path, r.core_hash] async for slot, r in read_log(store, "golden")]
    assert rows == held["records"]
    for _, _, path, core in held["records"]:
        found = await find(store, "golden", path)
        assert found is not None
        assert not core or found.core_hash == core or path == "/"


async def test_the_values_of_a_golden_ledger_are_read_wide_lists_too(golden) -> None:
    store, _ = golden
    values = Values(store, "golden")
    plan = await find(store, "golden", "/plan")
    assert plan is not None
    held = await values.unpack(plan.envelope, plan.core["delta"])
    assert isinstance(held["words"], ListRef)
    words = (await values.load(held))["words"]
    assert (len(words), words[1299]) == (1300, "word 1299 " + "x" * (40 + 1299 % 60))


async def test_a_golden_ledger_is_copied_and_opened_and_stays_as_it_is(golden) -> None:
    store, held = golden
    target = MemoryStore()
    assert (await copy_run(store, "golden", target)).problems == []
    before = dict(target._objects)
    opened = await LogWriter.open(target, "golden", leader_epoch=9, driver="d", genesis=None)
    assert opened.closed
    assert opened.writer.head == held["final"]["head"]
    assert target._objects == before


async def test_a_later_format_is_refused_in_one_sentence_that_says_what_to_do(golden) -> None:
    store, _ = golden
    key = slot_key("golden", 0)
    now, later = f'"format":{NUMBER}'.encode(), f'"format":{NUMBER + 1}'.encode()
    await store.put(key, (await store.get(key)).replace(now, later))
    with pytest.raises(NewerFormat, match=rf"has format {NUMBER + 1}, and this release reads {NUMBER}; use a newer"):
        parse(await store.get(key), key)
    with pytest.raises(NewerFormat):
        await LogWriter.open(store, "golden", leader_epoch=9, driver="d", genesis=None)
    found = (await verify(store, "golden"))[0]
    assert (found.code, "newer release" in found.message) == ("SEGMENT-FORMAT", True)
    await store.put(FORMAT, orjson.dumps({"format": NUMBER + 1}))
    with pytest.raises(StoreRefused, match="use a newer release"):
        await copy_run(store, "golden", store)


async def test_the_format_before_the_first_is_refused_as_such(golden) -> None:
    store, _ = golden
    data = (await store.get(slot_key("golden", 0))).replace(b'"format":1', b'"format":0')
    with pytest.raises(SegmentCorrupt, match="format 0, which nothing reads any more"):
        parse(data, "slot")


@pytest.mark.parametrize("number", [PACK_FORMAT])
async def test_the_files_of_a_golden_ledger_are_verified_and_read(number: int) -> None:
    store = open_store(str(GOLDEN / f"files-{number}"))
    held = orjson.loads((GOLDEN / f"files-{number}.json").read_bytes())
    assert await verify(store, "golden") == []
    record = await find(store, "golden", "/!output")
    assert record is not None
    version, objects = Version.from_json(record.envelope["workspace"]), Objects(store, "golden")
    await objects.learn(version)
    files = await files_of(objects, version.root)
    assert (version.root, list(version.packs)) == (held["root"], held["packs"])
    assert {path: sha256(await objects.read(entry)).hexdigest() for path, entry in files.items()} == held["files"]
    await store.aclose()


@pytest.mark.parametrize("number", [NUMBER])
async def test_the_sensitive_values_of_a_golden_ledger_are_verified_without_a_key_and_read_with_it(number: int) -> None:
    store = open_store(str(GOLDEN / f"sealed-{number}"))
    assert await verify(store, "golden") == []
    by = SealKey.of_text((GOLDEN / f"sealed-{number}.key").read_text(), "sealed.key")
    values = Values(store, "golden", seal=await key_of(store, "golden", by))
    record = await find(store, "golden", "/!output")
    assert record is not None
    output = await values.load(await values.unpack(record.envelope, record.core["delta"]))
    assert output["count"] == {"rows": 521, "letters": 4500}
    assert [output["rows"][at]["who"] for at in (519, 520)] == ["Ada Quill" * 10, "Ada Quill" * 400]
    broken = await find(store, "golden", "/broken")
    assert broken is not None
    assert "no such name: Ada Quill" in await values.unpack(broken.envelope, broken.envelope["said"])
    await store.aclose()
