"""What a store holds that somebody with its credentials wrote: the verifier says so, and neither ends nor grows."""

import hashlib
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from decurion_crds.canonical import canonical
from decurion_ledger import LogWriter, Record, Values, examine, make_core, verify, vhash
from decurion_ledger.errors import SegmentCorrupt
from decurion_ledger.layout import pack_key, slot_key
from decurion_ledger.log import fence
from decurion_ledger.segment import MAGIC, entries_of, parse
from decurion_ledger.stores import MemoryStore
from decurion_ledger.workspace import Entry, Version
from decurion_ledger.workspace.pack import Blob, make_pack
from decurion_ledger.workspace.tree import encode_tree, file_name, folder_entry, tree_name
from logs import RUN, commit, forge, genesis

START = (1, "d", [genesis(), fence(1, 1, "d")])
CONTENT = b"planted"
FILE = Entry("file", len(CONTENT), file_name(CONTENT))


def files(path: str, version: Version, **other: Any) -> Record:
    core = make_core(
        type="commit", path=path, node="1" * 64, parents=(), input=None, outcome="ok", delta=None, schema=None
    )
    core["workspace"] = version.root
    return Record.result(core, {"workspace": {**version.to_json(), **other}})


def tree(rows: dict[str, Entry]) -> Blob:
    raw = encode_tree(rows)
    return Blob(tree_name(raw), "tree", raw)


def content(raw: bytes) -> Blob:
    return Blob(file_name(raw), "file", raw)


async def told(store: MemoryStore, *records: Record) -> list[str]:
    await forge(store, START, (1, "d", list(records)))
    return [f"{problem.code} {problem.message}" for problem in await verify(store, RUN)]


async def packed(store: MemoryStore, *blobs: Blob) -> str:
    pack, whole = make_pack(blobs)
    await store.put(pack_key(RUN, pack), whole)
    return pack


# --- a version is read through its own packs


async def test_a_version_whose_own_packs_lack_what_those_of_another_hold_is_told() -> None:
    store = MemoryStore()
    root, file = tree({"x": FILE}), content(CONTENT)
    whole, half = await packed(store, root, file), await packed(store, root)
    good, bad = Version(root.name, (whole,)), Version(root.name, (half,))
    assert await told(store, files("/a", good)) == []
    for records in ([files("/a", good), files("/b", bad)], [files("/a", bad), files("/b", good)]):
        [found] = await told(store, *records)
        assert "no pack of these holds it" in found
    [found] = await told(store, files("/a", good), files("/b", Version(root.name, ())))
    assert "no pack of these holds it" in found


async def test_what_a_pack_in_a_record_holds_is_not_in_other_records() -> None:
    store = MemoryStore()
    root, file = tree({"x": FILE}), content(CONTENT)
    inline = make_pack([file])[1]
    pack = await packed(store, root)
    assert await told(store, files("/a", Version(root.name, (pack,), inline))) == []
    [found] = await told(
        store, files("/a", Version(root.name, (pack,), inline)), files("/b", Version(root.name, (pack,)))
    )
    assert "no pack of these holds it" in found


async def test_an_equal_folder_in_another_version_is_looked_at_through_the_packs_of_that() -> None:
    """The folder `d` is the same in both, and only one of them can read what is in it."""
    store = MemoryStore()
    below, file = tree({"x": FILE}), content(CONTENT)
    entry = Entry("dir", FILE.size, below.name, 1)
    one, other = tree({"d": entry}), tree({"d": entry, "e": FILE})
    all_ = await packed(store, below, one, file)
    more = await packed(store, other, file)
    assert (
        await told(store, files("/a", Version(one.name, (all_,))), files("/b", Version(other.name, (all_, more)))) == []
    )
    [found] = await told(store, files("/a", Version(one.name, (all_,))), files("/b", Version(other.name, (more,))))
    assert f"tree {below.name}: no pack of these holds it" in found


async def test_an_index_of_other_packs_is_enough_for_what_it_names_and_for_nothing_else() -> None:
    from decurion_ledger.workspace.pack import read_index

    store = MemoryStore()
    root, file = tree({"x": FILE}), content(CONTENT)
    pack = await packed(store, root, file)
    places = read_index(pack, await store.get(pack_key(RUN, pack)), "")
    for names, count in (((root.name, file.name), 0), ((root.name,), 1)):
        index, whole = make_pack([], {name: places[name] for name in names})
        await store.put(pack_key(RUN, index), whole)
        assert len(await told(store, files("/a", Version(root.name, (index,))))) == count


async def test_parts_of_a_large_file_must_be_in_the_packs_of_the_version() -> None:
    store = MemoryStore()
    part = content(b"part" * 100)
    whole = b"part" * 200
    chunks = Blob(file_name(whole), "chunks", canonical({"chunks": [[part.name, 400], [part.name, 400]]}))
    root = tree({"x": Entry("file", 800, chunks.name)})
    pack, parts = await packed(store, root, chunks), await packed(store, part)
    assert await told(store, files("/a", Version(root.name, (pack, parts)))) == []
    both = [files("/a", Version(root.name, (pack, parts))), files("/b", Version(root.name, (pack,)))]
    [found] = await told(store, *both)
    assert "chunk" in found


# --- folders and packs that no writer leaves


def _rows(*rows: list[Any]) -> bytes:
    return canonical({"entries": list(rows), "v": 0})


ROW = ["x", "file", len(CONTENT), FILE.ref]
NAMES = ["..", ".", "", "a/b", "a\0b", "a\\b", "con", "NUL.txt", "end.", "end ", "x" * 300]


@pytest.mark.parametrize(
    "raw",
    [
        *(_rows([name, *ROW[1:]]) for name in NAMES),
        _rows(["b", *ROW[1:]], ["a", *ROW[1:]]),
        _rows(ROW, ROW),
        _rows(["X", *ROW[1:]], ROW),
        _rows(["STRASSE", *ROW[1:]], ["straße", *ROW[1:]]),
        _rows(["x", "device", 7, FILE.ref]),
        _rows(["x", "file", -7, FILE.ref]),
        _rows(["x", "file", True, FILE.ref]),
        _rows(["x", "file", 8, FILE.ref]),
        _rows(["x", "dir", 7, FILE.ref]),
        *(_rows(["x", "link", len(to), to]) for to in ("/etc/passwd", "..", "../x", "a/../../x", "a//b", "", "\0")),
        _rows(["x", "link", 99, "y"]),
        b'{"v":0,"entries":[]}',
        b"[]",
        b"[" * 900 + b"]" * 900,
    ],
)
async def test_a_folder_that_no_writer_leaves_is_told(raw: bytes) -> None:
    store = MemoryStore()
    root = Blob(tree_name(raw), "tree", raw)
    pack = await packed(store, root, content(CONTENT))
    assert len(await told(store, files("/a", Version(root.name, (pack,))))) == 1


async def test_a_link_may_lead_up_as_far_as_there_are_folders_above_it() -> None:
    store = MemoryStore()
    for up, problems in ((1, 0), (2, 1)):
        target = "../" * up + "x"
        below = tree({"l": Entry("link", len(target), target)})
        root = tree({"d": Entry("dir", len(target), below.name, 1), "x": FILE})
        pack = await packed(store, below, root, content(CONTENT))
        assert len(await told(store, files("/a", Version(root.name, (pack,))))) == problems


@pytest.mark.parametrize(("size", "count"), [(7, 1), (15, 2), (14, 1), (14, 3)])
async def test_a_folder_that_says_another_size_of_what_is_below_is_told(size: int, count: int) -> None:
    store = MemoryStore()
    rows = {"x": FILE, "y": FILE}
    below = tree(rows)
    honest = tree({"d": folder_entry(rows, below.name)})
    root = tree({"d": Entry("dir", size, below.name, count)})
    pack = await packed(store, below, root, honest, content(CONTENT))
    assert await told(store, files("/a", Version(honest.name, (pack,)))) == []
    assert len(await told(store, files("/a", Version(root.name, (pack,))))) == 1


def _index(change: Callable[[dict[str, Any], bytes], tuple[Any, bytes]]) -> bytes:
    """The pack of a folder with one file, with another index."""
    root = tree({"x": FILE})
    whole = make_pack([root, content(CONTENT)])[1]
    (length,) = struct.unpack(">Q", whole[-16:-8])
    held = zstandard.ZstdDecompressor().decompress(whole[-16 - length : -16])
    import orjson

    index, frames = change(orjson.loads(held), whole[: -16 - length])
    stored = index if isinstance(index, bytes) else zstandard.ZstdCompressor().compress(canonical(index))
    return frames + stored + struct.pack(">Q", len(stored)) + whole[-8:]


def _with(**cells: Any) -> Callable[[dict[str, Any], bytes], tuple[Any, bytes]]:
    """One cell of the first row is another one."""

    def change(index: dict[str, Any], frames: bytes) -> tuple[Any, bytes]:
        for name, value in cells.items():
            at = ("name", "kind", "offset", "length", "size", "pack").index(name)
            row = index["objects"][0]
            row[at:] = [value] if name == "pack" else [value, *row[at + 1 :]]
        return index, frames

    return change


def _claims(size: int) -> bytes:
    """A zstd frame that claims this size."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + b"\x01\x00\x00"


HUGE = 1 << 45


@pytest.mark.parametrize(
    "change",
    [
        _with(offset=-1),
        _with(offset="0"),
        _with(length=HUGE, size=HUGE),
        _with(size=HUGE),
        _with(kind="device"),
        _with(name="../x"),
        _with(pack="../../../blobs/aa"),
        lambda index, frames: ({**index, "more": 1}, frames),
        lambda index, frames: ({**index, "format": 2}, frames),
        lambda index, frames: ({**index, "objects": index["objects"] * 2}, frames),
        lambda index, frames: (index, frames + b"bytes that nothing names"),
        lambda index, frames: (_claims(HUGE), frames),
    ],
)
async def test_a_pack_that_no_writer_leaves_is_told(change: Callable[..., Any]) -> None:
    store = MemoryStore()
    whole = _index(change)
    pack = hashlib.sha256(whole).hexdigest()
    await store.put(pack_key(RUN, pack), whole)
    assert len(await told(store, files("/a", Version(tree({"x": FILE}).name, (pack,))))) == 1


# --- values that are named twice


async def _twice(second: Callable[[str, dict[str, Any]], dict[str, Any]], value: Any) -> list[str]:
    """Two results in one segment that name one stored value, the second of them in another way."""
    store = MemoryStore()
    [(name, held)] = (await Values(store, RUN).pack([value])).items()
    honest = Record.event("turn", "/a", {"values": {name: held}})
    other = Record.event("turn", "/b", {"values": second(name, held)})
    assert await told(store, honest, honest) == []
    orders = [await told(store, *records) for records in ([honest, other], [other, honest])]
    assert [bool(found) for found in orders] == [True, True]
    return orders[0]


async def test_a_blob_is_held_against_each_value_that_it_is_named_for() -> None:
    await _twice(lambda name, held: {"0" * 64: held}, "long " * 2000)
    await _twice(lambda name, held: {name: {**held, "bytes": held["bytes"] + 1}}, "long " * 2000)


async def test_a_wide_list_is_held_against_each_count_and_root_that_it_is_named_with() -> None:
    from decurion_ledger.verifier.hashes import stored_hash

    def another(name: str, held: dict[str, Any]) -> dict[str, Any]:
        said = {"$list": {**held["tree"]["$list"], "root": "0" * 64}}
        return {stored_hash(said): {"tree": said}}

    assert "LIST" in " ".join(await _twice(another, [{"text": "x" * 100, "i": i} for i in range(2000)]))


async def test_what_a_node_gives_or_writes_must_be_with_its_record() -> None:
    store = MemoryStore()
    honest = commit("a", 1)
    assert honest.core is not None
    gone = Record.result(honest.core, {"values": {}})
    core = {**honest.core, "writes": [["notes", vhash(2)]]}
    written = Record.result(core, honest.envelope)
    assert await told(store, honest) == []
    for record in (gone, written):
        assert await told(store, record) == ["VALUE-HASH a value that it gives is not with it"]


# --- owners, types, and objects that take room


@pytest.mark.parametrize(
    ("segments", "code"),
    [
        ([START, (2, "e", [fence(2, 3, "e")]), (3, "f", [fence(3, 2, "f")])], "EPOCH"),
        ([START, (2, "e", [commit("a"), fence(2, 3, "e")])], "OWNER"),
        ([(1, "d", [genesis(), commit("a"), fence(1, 1, "d")])], "OWNER"),
        ([START, (1, "d", [Record.event("unheard", "/", {})])], "RECORD-FORMAT"),
    ],
)
async def test_what_no_writer_does_is_told(segments: list[Any], code: str) -> None:
    store = MemoryStore()
    await forge(store, *segments)
    assert {problem.code for problem in await verify(store, RUN)} == {code}


async def test_a_slot_far_away_takes_no_time() -> None:
    store = MemoryStore()
    await forge(store, START)
    await store.put(slot_key(RUN, 999_999_999_999), b"x")
    found = await verify(store, RUN)
    assert [p.message for p in found if p.code == "SLOT-MISSING"] == [
        "999999999998 slots from here on are missing but later ones exist"
    ]


async def _segment(store: MemoryStore, frames: list[tuple[bytes, int]]) -> None:
    """A segment of these frames and the sizes said of them; every hash of it is right."""
    from decurion_crds.canonical import digest

    fields = {"format": 1, "run": RUN, "slot": 1, "epoch": 1, "driver": "d", "nonce": "0" * 16, "key": "", "count": 1}
    previous = (await store.get(slot_key(RUN, 0)))[-32:].hex()
    before = len(canonical({**fields, "previous": "0" * 64, "root": "0" * 64, "content": "0" * 64})) + 12
    table, at = [], before
    for frame, raw in frames:
        table.append(struct.pack(">QII", at, len(frame), raw))
        at += len(frame)
    body = b"".join([*(frame for frame, _ in frames), *table, struct.pack(">QII8s", at, len(table), 0, MAGIC)])
    said = {**fields, "previous": previous, "root": "0" * 64, "content": digest("content/v0", body)}
    header = canonical(said)
    end = bytes.fromhex(digest("segment/v0", header))
    await store.put(slot_key(RUN, 1), MAGIC + struct.pack(">I", len(header)) + header + body + end)


@pytest.mark.parametrize(
    "frames",
    [
        [(_claims(HUGE), 100)],
        [(zstandard.ZstdCompressor().compress(b"\n" * 4_000_000), 4_000_000)] * 500,
    ],
    ids=["claims", "many"],
)
async def test_a_segment_that_unpacks_to_more_than_one_holds_takes_no_memory(frames: list[tuple[bytes, int]]) -> None:
    store = MemoryStore()
    await forge(store, START)
    await _segment(store, frames)
    tracemalloc.start()
    try:
        report = await examine(store, RUN)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()
    assert {problem.code for problem in report.problems} == {"SEGMENT-FORMAT"}
    with pytest.raises(SegmentCorrupt):
        parse(await store.get(slot_key(RUN, 1)), "slot 1")
    with pytest.raises(SegmentCorrupt):
        entries_of(await store.get(slot_key(RUN, 1)), "slot 1")


async def test_a_value_that_is_nested_without_end_is_told() -> None:
    store = MemoryStore()
    raw = b"[" * 1000 + b"]" * 1000
    sha = hashlib.sha256(raw).hexdigest()
    await store.put(f"blobs/{sha[:2]}/{sha}", raw)
    assert await told(store, Record.event("turn", "/a", {"values": {"0" * 64: {"blob": sha, "bytes": len(raw)}}}))


async def test_files_of_many_versions_are_followed_once() -> None:
    """Folders that did not change are not looked at again for each node."""
    from decurion_crds.globs import ALL
    from decurion_ledger.verifier.files import Files
    from decurion_ledger.workspace import EMPTY, Draft, Objects

    store = MemoryStore()
    opened = await LogWriter.open(store, RUN, leader_epoch=1, driver="d", genesis=genesis)
    version, objects = EMPTY, Objects(store, RUN)
    for number in range(60):
        draft = Draft(objects, version, read=ALL, write=ALL)
        for i in range(300 if number == 0 else 1):
            draft.write(f"d{number}/f{i}", f"{number} {i} {vhash(number)}".encode() * 30)
        version = await draft.commit()
        await opened.writer.append([files(f"/n{number}", version)])
    await opened.writer.aclose()
    looked = 0
    seen = Files._seen

    def counted(self: Files, *arguments: Any) -> Any:
        nonlocal looked
        looked += 1
        return seen(self, *arguments)

    Files._seen = counted  # type: ignore[method-assign]
    try:
        assert await verify(store, RUN) == []
    finally:
        Files._seen = seen  # type: ignore[method-assign]
    assert looked < 10 * (300 + 60 * 60)
