"""What the verifier says of the files of a run, and how much memory it takes for that."""

import os
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from decurion_crds.globs import ALL
from decurion_ledger import LogWriter, Record, Store, make_core, open_store, verify, vhash
from decurion_ledger.layout import pack_prefix
from decurion_ledger.workspace import EMPTY, Draft, Objects, Version
from decurion_ledger.workspace.objects import LARGE
from logs import RUN, genesis


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(str(tmp_path / "ledger"))
    yield store
    await store.aclose()


def left(path: str, version: Version) -> Record:
    """The result of a node that left these files."""
    core = make_core(
        type="commit",
        path=path,
        node="1" * 64,
        parents=(),
        input=vhash({}),
        outcome="ok",
        delta=vhash(None),
        schema=None,
    )
    core["workspace"] = version.root
    return Record.result(core, {"values": {vhash(None): {"inline": None}}, "workspace": version.to_json()})


async def committed(store: Store, *files: dict[str, bytes]) -> list[Version]:
    """The log of a run whose nodes wrote these files, one after the other."""
    opened = await LogWriter.open(store, RUN, leader_epoch=1, driver="d", genesis=genesis)
    versions = []
    for number, some in enumerate(files):
        objects = Objects(store, RUN)
        draft = Draft(objects, versions[-1] if versions else EMPTY, read=ALL, write=ALL)
        for path, content in some.items():
            draft.write(path, content)
        versions.append(await draft.commit())
        await opened.writer.append([left(f"/n{number}", versions[-1])])
    await opened.writer.aclose()
    return versions


async def test_packs_are_checked_one_at_a_time(store: Store) -> None:
    count, size = 16, 1024 * 1024
    await committed(store, *({f"file{number}": os.urandom(size)} for number in range(count)))
    packs = [info.key async for info in store.list(pack_prefix(RUN))]
    assert len(packs) == count
    tracemalloc.start()
    try:
        assert await verify(store, RUN) == []
        assert tracemalloc.get_traced_memory()[1] < 6 * size
    finally:
        tracemalloc.stop()


async def test_a_large_file_is_checked_as_a_whole(store: Store) -> None:
    [version] = await committed(store, {"large": os.urandom(LARGE + 1000), "small": b"s"})
    assert await verify(store, RUN) == []
    for pack in version.packs:
        key = pack_prefix(RUN) + pack
        raw = await store.get(key)
        await store.put(key, raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:])
        assert {problem.code for problem in await verify(store, RUN)} == {"FILES", "PACK"}
        await store.put(key, raw)


async def test_an_index_that_leads_to_a_place_where_nothing_is_is_told(store: Store) -> None:
    many = [{f"file{number}": os.urandom(10_000)} for number in range(40)]
    versions = await committed(store, *many)
    assert len(versions[-1].packs) < 40, "one index stands for many packs"
    assert await verify(store, RUN) == []
    first = versions[0].packs[0]
    await store.delete(pack_prefix(RUN) + first)
    found = await verify(store, RUN)
    assert {problem.code for problem in found} == {"FILES"}
    assert any(f"{first} is missing" in problem.message for problem in found)
