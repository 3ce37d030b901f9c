"""Versions of workspaces: what names them, where their objects are kept, and what is read back."""

import asyncio
import os
import random

import pytest

from decurion_crds.globs import ALL, Globs
from decurion_ledger.errors import BlobCorrupt, OutOfScope, WorkspaceTooLarge
from decurion_ledger.stores import Counted, MemoryStore, Store
from decurion_ledger.workspace import EMPTY, Cache, Draft, Limits, Objects, Version, totals
from decurion_ledger.workspace.pack import MAX_OBJECT, Blob, make_pack
from decurion_ledger.workspace.tree import file_name
from decurion_ledger.workspace.version import INLINE, MAX_PACKS
from trees import NOTHING, objects, texts, version

PRIME = random.Random(7)


def _noise(size: int) -> str:
    return PRIME.randbytes(size // 2).hex()


async def test_a_version_is_read_back_by_whoever_knows_it(store: Store) -> None:
    files = {"a": "A", "d/e/f": _noise(20_000), "d/e/g": "", "ü": "ü"}
    made = Version.from_json((await version(objects(store), files)).to_json())
    assert await texts(objects(store), made) == files


async def test_equal_trees_have_equal_roots_however_they_were_made() -> None:
    kept = objects()
    one = await version(kept, {"a": "A", "d/b": "B"})
    other = await version(kept, {"d/b": "B", "x/y": "X"})
    other = await version(kept, {"a": "A", "x/y": None}, other)
    assert one.root == other.root
    assert (await version(kept, {"a": None, "d/b": None}, one)).root == EMPTY.root


async def test_a_small_change_stands_in_the_version_and_makes_no_request() -> None:
    counted = Counted(MemoryStore())
    kept = objects(counted)
    small = await version(kept, {"a": "A"})
    assert small.inline
    assert len(small.inline) <= INLINE
    assert not small.packs
    assert (counted.puts, counted.gets) == (0, 0)
    large = await version(kept, {"b": _noise(40_000)}, small)
    assert not large.inline
    assert len(large.packs) == 1
    assert await texts(objects(counted), large) == await texts(kept, large)


async def test_branches_that_end_together_share_a_pack() -> None:
    store = MemoryStore()
    kept = objects(store)
    texts_ = [_noise(40_000) for _ in range(20)]
    made = await asyncio.gather(*(version(kept, {f"{i}": text}) for i, text in enumerate(texts_)))
    packs = [info async for info in store.list("runs/")]
    assert len(packs) <= 3
    assert {pack for one in made for pack in one.packs} == {info.key.rpartition("/")[2] for info in packs}


async def test_a_long_history_stays_findable_through_one_index() -> None:
    store = MemoryStore()
    kept = objects(store)
    now, due = EMPTY, {}
    for i in range(MAX_PACKS + 5):
        due[f"d{i % 7}/{i}"] = _noise(20_000)
        now = await version(kept, {f"d{i % 7}/{i}": due[f"d{i % 7}/{i}"]}, now)
    assert len(now.packs) <= MAX_PACKS
    assert await texts(objects(store), now) == dict(sorted(due.items()))


async def test_a_large_file_is_kept_in_chunks_and_shares_them_with_its_next_version(tmp_path) -> None:
    store = MemoryStore()
    kept = objects(store)
    text = _noise(MAX_OBJECT + 5_000_000)
    first = await version(kept, {"big": text})
    size = sum([info.size async for info in store.list("runs/")])
    second = await version(kept, {"big": text + "more"}, first)
    grown = sum([info.size async for info in store.list("runs/")]) - size
    assert (await texts(objects(store), second))["big"] == text + "more"
    assert grown < size / 2
    assert (await totals(kept, second.root)).size == len(text) + 4


@pytest.mark.parametrize("at", [0, 40, -1, -9, -20])
async def test_a_pack_with_any_other_bytes_is_told(at: int) -> None:
    store = MemoryStore()
    made = await version(objects(store), {"a": _noise(300_000), "b": _noise(3000)})
    (info,) = [info async for info in store.list("runs/")]
    raw = bytearray(await store.get(info.key))
    raw[at] ^= 1
    await store.put(info.key, bytes(raw))
    with pytest.raises(BlobCorrupt, match=made.packs[0]):
        await texts(objects(store), made)


async def test_a_pack_that_is_gone_is_told() -> None:
    made = await version(objects(), {"a": _noise(30_000)})
    with pytest.raises(BlobCorrupt, match="the pack is missing"):
        await texts(objects(), made)


async def test_the_cache_gives_nothing_that_was_changed(tmp_path) -> None:
    counted = Counted(MemoryStore())
    made = await version(objects(counted), {"a": _noise(600_000)})
    cache = Cache(tmp_path)
    await texts(Objects(counted, "r", cache=cache), made)
    before = counted.gets
    await texts(Objects(counted, "r", cache=Cache(tmp_path)), made)
    assert counted.gets == before + 1
    for path in tmp_path.glob("file/*/*"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert len((await texts(Objects(counted, "r", cache=Cache(tmp_path)), made))["a"]) == 600_000
    assert counted.gets == before + 3


def test_the_cache_keeps_within_its_size_and_what_was_used_last(tmp_path) -> None:
    cache = Cache(tmp_path, limit=10_000)
    raws = [PRIME.randbytes(2000) for _ in range(8)]
    for number, raw in enumerate(raws):
        cache.put(file_name(raw), "file", raw)
        path = cache.path(file_name(raw), "file")
        if path.exists():
            os.utime(path, ns=(number, number))
    held = [raw for raw in raws if cache.get(file_name(raw), "file") is not None]
    assert len(held) <= 5
    assert raws[-1] in held
    assert raws[0] not in held
    cache.put("0" * 64, "file", b"not of this hash")
    assert cache.get("0" * 64, "file") is None


async def test_a_draft_keeps_to_what_it_may_read_and_write() -> None:
    kept = objects()
    start = await version(kept, {"src/a.py": "a", "docs/b.md": "b", "secret": "s"})
    draft = Draft(kept, start, read=Globs(("docs/**",)), write=Globs(("src/*.py",)))
    assert await draft.files() == ["docs/b.md", "src/a.py"]
    assert await draft.read("src/a.py") == b"a"
    with pytest.raises(OutOfScope, match="may write src"):
        draft.write("docs/b.md", b"")
    with pytest.raises(OutOfScope, match="may read docs"):
        await draft.read("secret")
    with pytest.raises(OutOfScope, match="may write nothing"):
        Draft(kept, start, read=ALL, write=NOTHING).remove("secret")
    draft.write("src/a.py", b"aa", executable=True)
    draft.write("src/n.py", b"n")
    assert await draft.files(Globs(("src/**",))) == ["src/a.py", "src/n.py"]
    assert await draft.read("src/n.py") == b"n"
    made = await draft.commit()
    assert await texts(kept, made) == {"docs/b.md": "b", "secret": "s", "src/a.py": "aa", "src/n.py": "n"}
    assert await texts(kept, start) == {"docs/b.md": "b", "secret": "s", "src/a.py": "a"}


async def _more(draft: Draft) -> None:
    draft.write("b/c/d", b"123456789")
    await draft.commit()


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(bytes=9), "10 bytes, more than its limit of 9"),
        (Limits(files=1), "2 files, more than its limit of 1"),
        (Limits(depth=1), "2 folders above a file, more than its limit of 1"),
    ],
)
async def test_a_change_beyond_the_quota_is_refused(limits: Limits, why: str) -> None:
    draft = Draft(objects(), EMPTY, read=ALL, write=ALL, limits=limits)
    draft.write("a", b"1")
    with pytest.raises(WorkspaceTooLarge, match=why):
        await _more(draft)


async def test_a_pack_says_what_is_in_it_whatever_the_order(tmp_path) -> None:
    blobs = [Blob(file_name(raw), "file", raw) for raw in (b"a" * 100, b"b", b"")]
    assert make_pack(blobs) == make_pack(reversed(blobs))
