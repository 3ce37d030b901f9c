"""Trees, packs and folders of somebody who means harm: each is refused, and nothing is left outside the root."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from decurion_crds.canonical import canonical
from decurion_ledger.errors import BadTree, BlobCorrupt, LedgerError, WorkspaceTooLarge
from decurion_ledger.layout import pack_key
from decurion_ledger.stores import MemoryStore
from decurion_ledger.workspace import EMPTY, Entry, Limits, Objects, Upload, Version, checkout, merge, scan
from decurion_ledger.workspace.pack import Blob, make_pack
from decurion_ledger.workspace.tree import encode_tree, file_name, tree_name
from trees import objects, version

CONTENT = b"planted"
FILE = Entry("file", len(CONTENT), file_name(CONTENT))


async def _hostile(rows: dict[str, Entry], *trees: bytes) -> tuple[Objects, Version]:
    """A version whose root has these entries, written as no code of ours would."""
    store = MemoryStore()
    raw = encode_tree(rows)
    blobs = [Blob(file_name(CONTENT), "file", CONTENT), *(Blob(tree_name(t), "tree", t) for t in (raw, *trees))]
    pack, whole = make_pack(blobs)
    await store.put(pack_key("r", pack), whole)
    return Objects(store, "r"), Version(tree_name(raw), (pack,))


def _link(target: str) -> Entry:
    return Entry("link", len(target), target)


def _below(name: str, rows: dict[str, Entry]) -> tuple[dict[str, Entry], bytes]:
    raw = encode_tree(rows)
    return {name: Entry("dir", sum(e.size for e in rows.values()), tree_name(raw), len(rows))}, raw


NAMES = [
    "..", ".", "", "/etc/passwd", "../x", "a/b", "a\0b", "a\nb", "a\\b", "con", "NUL.txt", "com1", "end.", "end ",
    "x" * 300, "\x7f",
]  # fmt: skip
LINKS = ["/etc/passwd", "..", "../x", "a/../../x", "d/../..", "a//b", "./../..", "\0", "", "x/./.."]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    return tmp_path / "outside" / "root"


def _outside(root: Path) -> list[Path]:
    """What was written beside the root, and links in it."""
    beside = [path for path in root.parent.rglob("*") if path != root and root not in path.parents]
    return beside + [path for path in root.rglob("*") if path.is_symlink()]


async def _refused(kept: Objects, made: Version, root: Path, kind: type[LedgerError] = BadTree) -> None:
    with pytest.raises(kind):
        await checkout(kept, made, root, limits=Limits(files=1000))
    assert _outside(root) == []


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_leads_elsewhere_is_refused(name: str, root: Path) -> None:
    await _refused(*await _hostile({name: FILE}), root)


@pytest.mark.parametrize("name", NAMES)
async def test_a_folder_that_leads_elsewhere_is_refused(name: str, root: Path) -> None:
    rows, raw = _below(name, {"x": FILE})
    await _refused(*await _hostile(rows, raw), root)


@pytest.mark.parametrize("target", LINKS)
async def test_a_link_that_leads_out_is_refused(target: str, root: Path) -> None:
    await _refused(*await _hostile({"l": _link(target)}), root)
    rows, raw = _below("d", {"l": _link(f"../{target}")})
    if target not in ("..", ""):
        await _refused(*await _hostile(rows, raw), root)


@pytest.mark.parametrize(("one", "other"), [("a", "A"), ("straße", "STRASSE"), ("caf\u00e9", "cafe\u0301")])
async def test_names_that_are_one_on_some_systems_are_refused(one: str, other: str, root: Path) -> None:
    await _refused(*await _hostile({one: FILE, other: FILE}), root)


async def test_a_tree_of_trees_that_grows_without_end_is_refused_before_it_is_read(root: Path) -> None:
    entry, trees = FILE, []
    for _ in range(15):
        raw = encode_tree({f"{i}": entry for i in range(10)})
        entry = Entry("dir", entry.size * 10, tree_name(raw), entry.files * 10)
        trees.append(raw)
    await _refused(*await _hostile({"d": entry}, *trees), root, WorkspaceTooLarge)


async def test_a_folder_that_says_it_is_smaller_than_it_is_is_told(root: Path) -> None:
    raw = encode_tree({f"{i}": FILE for i in range(2000)})
    small = Entry("dir", 7, tree_name(raw), 1)
    await _refused(*await _hostile({"d": small}, raw), root, BlobCorrupt)


async def test_a_tree_that_is_too_deep_is_refused(root: Path) -> None:
    rows, trees = {"x": FILE}, []
    for _ in range(100):
        rows, raw = _below("d", rows)
        rows = {"d": rows["d"]._replace(files=1)}
        trees.append(raw)
    await _refused(*await _hostile(rows, *trees), root, WorkspaceTooLarge)


async def test_an_object_that_claims_to_be_huge_takes_no_memory(root: Path) -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(b"\0" * 50_000_000)
    store = MemoryStore()
    tree = encode_tree({"bomb": Entry("file", 50_000_000, "1" * 64)})
    pack, whole = make_pack([Blob(tree_name(tree), "tree", tree), Blob("1" * 64, "file", bomb)])
    await store.put(pack_key("r", pack), whole)
    await _refused(Objects(store, "r"), Version(tree_name(tree), (pack,)), root, BlobCorrupt)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"entries":[],"v":9}', b'{"v":0,"entries":[]}'])
async def test_a_folder_in_another_form_is_told(raw: bytes, root: Path) -> None:
    store = MemoryStore()
    pack, whole = make_pack([Blob(tree_name(raw), "tree", raw)])
    await store.put(pack_key("r", pack), whole)
    await _refused(Objects(store, "r"), Version(tree_name(raw), (pack,)), root, BlobCorrupt)


@pytest.mark.parametrize(
    "row",
    [["a", "device", 1, "1" * 64], ["a", "file", -1, "1" * 64], ["a", "file", 1, "../x"], ["a", "dir", 1, "1" * 64]],
)
async def test_an_entry_of_another_kind_is_told(row: list[Any], root: Path) -> None:
    raw = canonical({"entries": [row], "v": 0})
    store = MemoryStore()
    pack, whole = make_pack([Blob(tree_name(raw), "tree", raw)])
    await store.put(pack_key("r", pack), whole)
    await _refused(Objects(store, "r"), Version(tree_name(raw), (pack,)), root, BlobCorrupt)


async def test_a_link_among_what_is_put_out_is_not_followed(root: Path) -> None:
    kept, made = objects(), EMPTY
    made = await version(kept, {"d/x": "X"})
    _plant(root, "folder out")
    with pytest.raises(LedgerError):
        await checkout(kept, made, root)
    assert not (root.parent / "x").exists()


def _plant(folder: Path, what: str) -> None:
    folder.mkdir()
    match what:
        case "folder out":
            (folder / "d").symlink_to(folder.parent)
        case "pipe":
            os.mkfifo(folder / "x")
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                here = Path.cwd()
                os.chdir(folder)
                try:
                    made.bind("x")
                finally:
                    os.chdir(here)
        case "hard link":
            (folder.parent / "secret").write_text("s")
            (folder / "x").hardlink_to(folder.parent / "secret")
        case "setuid":
            (folder / "x").write_text("")
            (folder / "x").chmod(0o4755)
        case "setgid":
            (folder / "x").write_text("")
            (folder / "x").chmod(0o2755)
        case "link out":
            (folder / "x").symlink_to("../secret")
        case "absolute link":
            (folder / "x").symlink_to("/etc/passwd")
        case "case":
            (folder / "x").write_text("")
            (folder / "X").write_text("")
        case "bytes":
            Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("")
        case "control":
            (folder / "a\nb").write_text("")


@pytest.mark.parametrize(
    "what",
    ["pipe", "socket", "hard link", "setuid", "setgid", "link out", "absolute link", "case", "bytes", "control"],
)
async def test_what_no_workspace_may_hold_is_refused_when_a_folder_is_read(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    _plant(folder, what)
    with pytest.raises(BadTree):
        await scan(objects(), folder, EMPTY)


async def test_a_folder_beyond_the_quota_is_refused(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i}").write_text("x" * 100)
    for limits in (Limits(files=10), Limits(bytes=1000)):
        with pytest.raises(WorkspaceTooLarge):
            await scan(objects(), tmp_path, EMPTY, limits=limits)
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with pytest.raises(WorkspaceTooLarge):
        await scan(objects(), tmp_path, EMPTY, limits=Limits(depth=2))


async def test_an_arm_with_hostile_names_is_not_merged() -> None:
    kept, made = await _hostile({"..": FILE})
    with pytest.raises(BadTree):
        await merge(kept, EMPTY, {0: made})


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", "a//b", "", "a/", "CON/x"])
async def test_an_edit_outside_is_refused(path: str) -> None:
    from decurion_ledger.workspace import edited

    with pytest.raises(BadTree):
        await edited(Upload(objects(), EMPTY), EMPTY.root, {path: FILE})
