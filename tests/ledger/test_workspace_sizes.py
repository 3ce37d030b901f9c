"""Files that are not as large as is said of them, large files for reading, and folders of very many files."""

import stat
from pathlib import Path

import pytest

from decurion_crds.canonical import canonical
from decurion_ledger.errors import BlobCorrupt, WorkspaceTooLarge
from decurion_ledger.layout import pack_key
from decurion_ledger.stores import MemoryStore
from decurion_ledger.workspace import EMPTY, Entry, Limits, Objects, Version, checkout, scan
from decurion_ledger.workspace.objects import LARGE
from decurion_ledger.workspace.pack import Blob, make_pack
from decurion_ledger.workspace.tree import encode_tree, file_name, tree_name
from trees import entries, objects, texts, version

PART = b"part" * 1000


async def _hostile(entry: Entry, *blobs: Blob) -> tuple[Objects, Version]:
    store = MemoryStore()
    raw = encode_tree({"x": entry, "y": entry})
    pack, whole = make_pack([*blobs, Blob(tree_name(raw), "tree", raw)])
    await store.put(pack_key("r", pack), whole)
    return Objects(store, "r"), Version(tree_name(raw), (pack,))


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*"))


async def _refused(kept: Objects, made: Version, folder: Path) -> None:
    with pytest.raises(BlobCorrupt):
        await checkout(kept, made, folder, limits=Limits(bytes=1000))
    assert _bytes_in(folder) == 0
    with pytest.raises(BlobCorrupt):
        await kept.read((await entries(kept, made))["x"])


async def test_a_file_that_is_larger_than_its_folder_says_is_not_put_out(tmp_path: Path) -> None:
    await _refused(*await _hostile(Entry("file", 3, file_name(PART)), Blob(file_name(PART), "file", PART)), tmp_path)


@pytest.mark.parametrize("said", [3, len(PART) * 100, LARGE + 1])
async def test_a_file_in_parts_that_is_larger_than_its_folder_says_is_not_put_out(said: int, tmp_path: Path) -> None:
    """The parts are one and the same: a small pack would fill a disk."""
    name, rows = file_name(PART * 3000), [[file_name(PART), len(PART)]] * 3000
    chunks = Blob(name, "chunks", canonical({"chunks": rows}))
    kept, made = await _hostile(Entry("file", said, name), chunks, Blob(file_name(PART), "file", PART))
    with pytest.raises(BlobCorrupt):
        await checkout(kept, made, tmp_path)
    assert _bytes_in(tmp_path) == 0


async def test_parts_that_are_not_as_large_as_the_list_says_are_not_put_out(tmp_path: Path) -> None:
    name = file_name(PART * 3000)
    chunks = Blob(name, "chunks", canonical({"chunks": [[file_name(PART), LARGE + 1]]}))
    kept, made = await _hostile(Entry("file", LARGE + 1, name), chunks, Blob(file_name(PART), "file", PART))
    with pytest.raises(BlobCorrupt):
        await checkout(kept, made, tmp_path)
    assert _bytes_in(tmp_path) == 0


async def test_nobody_writes_to_a_large_file_that_is_put_out_for_reading(tmp_path: Path) -> None:
    kept = objects()
    made = await version(kept, {"large": "x" * (LARGE + 1), "small": "s"})
    await checkout(kept, made, tmp_path / "w", read_only=True)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "w").iterdir()} == {0o444}


async def test_a_folder_of_very_many_files_can_be_read_again() -> None:
    store = MemoryStore()
    made = await version(objects(store), {f"a file with a long name {i:06}": "" for i in range(90_000)})
    assert len(await texts(objects(store), made)) == 90_000


async def test_a_folder_that_could_not_be_read_again_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for what, limit in (("MAX_ENTRIES", 10), ("MAX_OBJECT", 500)):
        with monkeypatch.context() as patched:
            patched.setattr(f"decurion_ledger.workspace.edit.{what}", limit)
            with pytest.raises(WorkspaceTooLarge, match="in d/"):
                await version(objects(), {f"d/{i}": "" for i in range(11)})


async def test_a_folder_is_not_read_further_than_its_limit(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i}").write_text("")
    with pytest.raises(WorkspaceTooLarge, match="would have 4 files"):
        await scan(objects(), tmp_path, EMPTY, limits=Limits(files=3))


@pytest.mark.parametrize(
    "row",
    [
        ["1" * 64, "file", -1, 1, 1],
        ["1" * 64, "file", "0", 1, 1],
        ["1" * 64, "file", 0, 1 << 45, 1 << 45],
        ["1" * 64, "device", 0, 1, 1],
        ["../x", "file", 0, 1, 1],
        ["1" * 64, "file", 0, 1, 1, "../../other/packs/aa"],
        ["1" * 64, "file", 0, 1],
        [],
        7,
    ],
)
async def test_an_index_that_no_writer_leaves_is_refused(row: object, tmp_path: Path) -> None:
    import struct

    import zstandard

    index = zstandard.ZstdCompressor().compress(canonical({"format": 1, "objects": [row]}))
    store = MemoryStore()
    await store.put(pack_key("r", "a" * 64), index + struct.pack(">Q", len(index)) + b"DCRNPCK1")
    with pytest.raises(BlobCorrupt):
        await Objects(store, "r").learn(Version("2" * 64, ("a" * 64,)))
