"""A run as one file: the same bytes each time, whole again where it is unpacked, and nothing else comes out of it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from decurion_ledger import open_store, verify
from decurion_ledger.archive import pack_run, runs_in, unpack_run
from decurion_ledger.errors import ArchiveUnreadable, LogCorrupt, RunNotFound, RunOpen
from decurion_ledger.stores import MemoryStore
from logs import RUN, open_log
from test_copying import content, with_blobs


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_run_goes_into_one_file_and_comes_back(tmp_path: Path) -> None:
    source, target, file = MemoryStore(), MemoryStore(), tmp_path / "run.tar"
    await with_blobs(source)
    await with_blobs(source, "other", values=())
    assert (await pack_run(source, RUN, file)).problems == []
    first = file.read_bytes()
    assert (await pack_run(source, RUN, file)).problems == []
    assert file.read_bytes() == first
    assert runs_in(file) == [RUN]
    assert (await unpack_run(file, RUN, target)).problems == []
    assert (await content(target)).items() <= (await content(source)).items()
    assert await verify(target, RUN) == []
    assert listed(tmp_path) == ["run.tar"]


async def test_an_unpacked_file_is_a_ledger(tmp_path: Path) -> None:
    source, file = MemoryStore(), tmp_path / "run.tar"
    await with_blobs(source)
    await pack_run(source, RUN, file)
    with tarfile.open(file) as tar:
        tar.extractall(tmp_path / "ledger", filter="data")
    store = open_store(str(tmp_path / "ledger"))
    assert await verify(store, RUN) == []
    await store.aclose()


async def test_what_cannot_be_packed_leaves_no_file(tmp_path: Path) -> None:
    source, file = MemoryStore(), tmp_path / "run.tar"
    await open_log(source)
    with pytest.raises(RunOpen):
        await pack_run(source, RUN, file)
    damaged = MemoryStore()
    await with_blobs(damaged, values=())
    key = next(key for key in await content(damaged, "blobs/"))
    await damaged.put(key, b'"other"')
    with pytest.raises(LogCorrupt, match="does not have its hash"):
        await pack_run(damaged, RUN, file)
    assert listed(tmp_path) == []


def member(name: str, data: bytes = b"x", **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in changes.items():
        setattr(info, field, value)
    return info, data


@pytest.mark.parametrize(
    "hostile",
    [
        member("../out"),
        member("/etc/passwd"),
        member("runs/./x"),
        member("a/../../out"),
        member("link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("hard", b"", type=tarfile.LNKTYPE, linkname="../../out"),
        member("pipe", b"", type=tarfile.FIFOTYPE),
    ],
    ids=lambda one: one[0].name,
)
async def test_nothing_comes_out_of_a_hostile_archive(hostile: tuple[tarfile.TarInfo, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with tarfile.open(folder / "bad.tar", "w") as tar:
        tar.addfile(hostile[0], io.BytesIO(hostile[1]))
    with pytest.raises(ArchiveUnreadable):
        await unpack_run(folder / "bad.tar", RUN, MemoryStore())
    assert (listed(folder), listed(tmp_path)) == (["bad.tar"], ["in"])


async def test_a_damaged_archive_and_another_run_are_told(tmp_path: Path) -> None:
    source, file = MemoryStore(), tmp_path / "run.tar"
    await with_blobs(source, values=())
    await pack_run(source, RUN, file)
    with pytest.raises(RunNotFound):
        await unpack_run(file, "another", MemoryStore())
    whole = file.read_bytes()
    at = whole.index(b"decurion", 1000)
    file.write_bytes(whole[: at + 300] + bytes([whole[at + 300] ^ 1]) + whole[at + 301 :])
    with pytest.raises(LogCorrupt, match="log/000000000000"):
        await unpack_run(file, RUN, MemoryStore())
    file.write_bytes(b"no tar at all" * 100)
    with pytest.raises(ArchiveUnreadable, match=r"run\.tar is no archive of a run"):
        await unpack_run(file, RUN, MemoryStore())


async def test_an_archive_with_other_bytes_under_a_blob_s_name_changes_nothing_that_other_runs_need(
    tmp_path: Path,
) -> None:
    source, target, file = MemoryStore(), MemoryStore(), tmp_path / "run.tar"
    await with_blobs(source)
    await pack_run(source, RUN, file)
    key, raw = next(iter((await content(source, "blobs/")).items()))
    with tarfile.open(file) as tar:
        members = [(info, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
    with tarfile.open(file, "w:", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(bytes([data[0] ^ 1]) + data[1:] if info.name == key else data))
    with pytest.raises(LogCorrupt, match="blob"):
        await unpack_run(file, RUN, target)
    assert key not in await content(target)
    await target.put(key, raw)
    with pytest.raises(LogCorrupt, match="blob"):
        await unpack_run(file, RUN, target)
    assert await target.get(key) == raw


async def test_an_archive_with_a_file_that_claims_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    """A sparse member is a few bytes that unpack to as many as it says."""
    file = tmp_path / "sparse.tar"
    with tarfile.open(file, "w:", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("blobs/aa/aa")
        info.type = tarfile.GNUTYPE_SPARSE
        tar.addfile(info)
    raw = bytearray(file.read_bytes())
    raw[483:495] = b"%011o\0" % (60 * 1024 * 1024)  # the real size of the member
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    file.write_bytes(raw)
    target = MemoryStore()
    with pytest.raises(ArchiveUnreadable, match="no object of a ledger"):
        await unpack_run(file, "r", target)
    assert listed(tmp_path) == ["sparse.tar"]
