"""Versions on a disk: put there, changed by whatever runs there, and read back."""

import os
from pathlib import Path

import pytest

from decurion_crds.globs import Globs
from decurion_ledger.errors import BadTree
from decurion_ledger.workspace import EMPTY, Cache, Index, Limits, Objects, checkout, scan
from decurion_ledger.workspace.checkout import SLACK_NS
from trees import entries, objects, texts, version

LATER = 10**19


async def test_what_is_put_on_a_disk_is_read_back_as_the_same_version(tmp_path: Path) -> None:
    kept = objects()
    made = await version(kept, {"a": "A", "d/e": "E" * 20_000, "d/f/g": ""})
    index = await checkout(kept, made, tmp_path / "w")
    assert (tmp_path / "w" / "d" / "e").read_text() == "E" * 20_000
    done = await scan(kept, tmp_path / "w", made, index=index)
    assert done.version == made


async def test_only_what_changed_is_read_again(tmp_path: Path) -> None:
    kept = objects()
    first = await scan(kept, _folder(tmp_path, {f"{i}": str(i) for i in range(20)}), EMPTY, now=lambda: LATER)
    assert first.hashed == 20
    again = await scan(kept, tmp_path, first.version, index=first.index, now=lambda: LATER)
    assert again.hashed == 0
    assert again.version == first.version
    (tmp_path / "3").write_text("three")
    (tmp_path / "4").unlink()
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "m").write_text("m")
    (tmp_path / "5").chmod(0o755)
    third = await scan(kept, tmp_path, first.version, index=again.index, now=lambda: LATER)
    assert third.hashed == 3
    found = await texts(kept, third.version)
    assert (found["3"], found["n/m"], "4" in found) == ("three", "m", False)
    assert (await entries(kept, third.version))["5"].kind == "exec"


async def test_a_file_that_may_have_changed_since_it_was_read_is_read_again(tmp_path: Path) -> None:
    kept = objects()
    first = await scan(kept, _folder(tmp_path, {"a": "new"}), EMPTY)
    stamp, entry = first.index.files["a"]
    wrong = entry._replace(ref="0" * 64)
    changed = max(stamp.mtime_ns, stamp.ctime_ns)
    racy = Index(first.version.root, changed + SLACK_NS, {"a": (stamp, wrong)})
    assert (await scan(kept, tmp_path, first.version, index=racy)).index.files["a"][1] == entry
    sure = Index(first.version.root, changed + SLACK_NS + 1, {"a": (stamp, wrong)})
    assert (await scan(kept, tmp_path, first.version, index=sure)).index.files["a"][1] == wrong


async def test_an_old_time_put_back_on_a_file_hides_nothing(tmp_path: Path) -> None:
    kept = objects()
    first = await scan(kept, _folder(tmp_path, {"a": "one"}), EMPTY, now=lambda: LATER)
    before = (tmp_path / "a").stat()
    (tmp_path / "a").write_text("two")
    while (tmp_path / "a").stat().st_ctime_ns == before.st_ctime_ns:
        (tmp_path / "a").chmod(0o644)  # a file system's clock ticks slowly
    os.utime(tmp_path / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    done = await scan(kept, tmp_path, first.version, index=first.index)
    assert (await texts(kept, done.version))["a"] == "two"


async def test_links_stay_links_and_inside(tmp_path: Path) -> None:
    kept = objects()
    folder = _folder(tmp_path / "one", {"d/a": "A", "e/b": "B"})
    (folder / "d" / "l").symlink_to("../e/b")
    done = await scan(kept, folder, EMPTY)
    assert (await entries(kept, done.version))["d/l"].kind == "link"
    await checkout(kept, done.version, tmp_path / "two")
    assert (tmp_path / "two" / "d" / "l").readlink() == Path("../e/b")
    assert (tmp_path / "two" / "d" / "l").read_text() == "B"


async def test_a_change_outside_what_may_be_written_is_refused(tmp_path: Path) -> None:
    kept = objects()
    made = await version(kept, {"in/a": "A", "out/b": "B"})
    index = await checkout(kept, made, tmp_path)
    (tmp_path / "in" / "a").write_text("changed")
    done = await scan(kept, tmp_path, made, index=index, write=Globs(("in/**",)))
    assert (await texts(kept, done.version))["in/a"] == "changed"
    (tmp_path / "out" / "b").unlink()
    with pytest.raises(BadTree, match=r"'out/b': it was changed, and only in/\*\* may be written here"):
        await scan(kept, tmp_path, made, index=index, write=Globs(("in/**",)))


async def test_a_large_file_goes_to_the_disk_and_back(tmp_path: Path) -> None:
    kept = objects()
    folder = _folder(tmp_path / "one", {"small": "s"})
    (folder / "big").write_bytes(os.urandom(9_000_000))
    done = await scan(kept, folder, EMPTY)
    await checkout(kept, done.version, tmp_path / "two", read_only=True)
    assert (tmp_path / "two" / "big").read_bytes() == (folder / "big").read_bytes()
    assert not (tmp_path / "two" / "small").stat().st_mode & 0o222


async def test_writing_into_a_checkout_does_not_reach_the_cache(tmp_path: Path) -> None:
    store = objects()._store
    made = await version(objects(store), {"a": "A" * 5000})
    kept = Objects(store, "r", cache=Cache(tmp_path / "cache"))
    for name in ("one", "two"):
        await checkout(kept, made, tmp_path / name)
        assert (tmp_path / name / "a").read_text() == "A" * 5000
        with (tmp_path / name / "a").open("r+") as file:
            file.write("changed")


async def test_a_part_of_a_version_is_put_on_a_disk(tmp_path: Path) -> None:
    kept = objects()
    made = await version(kept, {"src/a": "A", "docs/b": "B"})
    await checkout(kept, made, tmp_path / "w", wanted=Globs(("src/**",)))
    assert sorted(path.name for path in (tmp_path / "w").rglob("*")) == ["a", "src"]
    with pytest.raises(BadTree, match="the folder is not empty"):
        await checkout(kept, made, tmp_path / "w", limits=Limits())


def _folder(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder
