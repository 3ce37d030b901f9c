"""What is read and listed by address: folders of this machine, buckets of a real server, and what may not be read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cluster.s3 import S3Server
from decurion_crds.globs import Glob
from decurion_ledger import open_store
from decurion_ledger.errors import BadTree
from decurion_worker.errors import SourceChanged, SourceMissing, SourceRefused
from decurion_worker.sources import Sources
from others_objects import Bucket

MANY = 1000


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def laptop(**more: str) -> Sources:
    return Sources(open_store, files=True, **more)


async def keys(sources: Sources, prefix: str, glob: str | None = None) -> list[str]:
    return [one.key for one in await sources.list(prefix, glob=glob, most=MANY)]


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("*.txt", ["a.txt", ".txt", "ü\n.txt"], ["a.md", "a/b.txt", "a.txt.md", "A.TXT"]),
        ("**/*.txt", ["a.txt", "a/b.txt", "a/b/c.txt"], ["a.md", "a.txt/b"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a/c", "ab/c"]),
        ("**", ["a", "a/b"], []),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a/bz", "az"]),
        ("a**b", ["ab", "axb"], ["a/b"]),
        ("?[0-9].md", ["a1.md"], ["1.md", "ab.md", "/1.md"]),
        ("[!a].md", ["b.md"], ["a.md", "/.md"]),
        ("[a.md", ["[a.md"], ["a.md"]),
        ("a+b(1).$", ["a+b(1).$"], ["aab(1).$"]),
        ("[^a]b", ["ab", "^b"], ["bb"]),
    ],
)
def test_a_glob_fits_whole_keys(pattern: str, fits: list[str], others: list[str]) -> None:
    glob = Glob(pattern)
    assert [key for key in (*fits, *others) if glob.fits(key)] == fits
    assert all(key.startswith(glob.fixed) for key in fits)


async def test_a_folder_is_listed_in_order_of_its_keys(tmp_path: Path) -> None:
    put(tmp_path, "b.txt", "a/z.txt", "a/b.md", "a.txt", "Z.txt", ".git/x.txt", "a/.hidden.txt")
    assert await keys(laptop(), str(tmp_path)) == ["Z.txt", "a.txt", "a/b.md", "a/z.txt", "b.txt"]
    assert await keys(laptop(), tmp_path.as_uri(), "**/*.txt") == ["Z.txt", "a.txt", "a/z.txt", "b.txt"]
    assert await keys(laptop(), f"{tmp_path}/a/") == ["b.md", "z.txt"]


async def test_an_item_says_what_is_needed_to_read_it_again(tmp_path: Path) -> None:
    put(tmp_path, "in/100% of #1?.txt")
    relative = Sources(open_store, files=True, base=tmp_path)
    for sources, prefix in ((laptop(), (tmp_path / "in").as_uri()), (laptop(), f"{tmp_path}/in"), (relative, "in/")):
        (one,) = await sources.list(prefix, most=MANY)
        assert one.key == "100% of #1?.txt"
        assert one.size == len(b"in/100% of #1?.txt")
        assert one.etag == hashlib.sha256(b"in/100% of #1?.txt").hexdigest()
        assert await sources.read(one.uri, etag=one.etag) == b"in/100% of #1?.txt"
    assert one.uri == "in/100% of #1?.txt"


async def test_a_folder_that_is_not_there_is_missing_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    assert await keys(laptop(), str(tmp_path)) == []
    with pytest.raises(SourceMissing):
        await keys(laptop(), f"{tmp_path}/nothing")
    put(tmp_path, "a.jsonl")
    with pytest.raises(SourceRefused, match="it is no folder; write the folder, or jsonl"):
        await keys(laptop(), f"{tmp_path}/a.jsonl")


async def test_the_ledger_is_in_no_listing(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "ledger/runs/x")
    assert await keys(laptop(ledger=str(tmp_path / "ledger")), str(tmp_path)) == ["a.txt"]
    assert await keys(laptop(ledger=(tmp_path / "ledger").as_uri()), str(tmp_path)) == ["a.txt"]


async def test_links_to_files_are_files_and_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "in/a.txt", "out/b.txt")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "out" / "b.txt")
    (tmp_path / "in" / "round").symlink_to(tmp_path / "in")
    assert await keys(laptop(), f"{tmp_path}/in") == ["a.txt", "link.txt"]


async def test_a_folder_that_is_closed_has_no_link_out_of_it_and_plain_files_only(tmp_path: Path) -> None:
    put(tmp_path, "others/secret", "in/a", "in/more/b", "in/.hidden/link")
    inside = tmp_path / "in"
    (inside / "again").symlink_to("a")
    (inside / ".out").symlink_to("../others/secret")
    assert [one.key for one in await laptop().list(str(inside), most=9, closed=True)] == ["a", "again", "more/b"]

    (inside / "more" / "out").symlink_to("../../others/secret")
    with pytest.raises(BadTree, match=r"more/out.*its link leads out of the folder"):
        await laptop().list(str(inside), most=9, closed=True)
    (inside / "more" / "out").unlink()
    (inside / "folder").symlink_to("../others")
    with pytest.raises(BadTree, match=r"folder.*its link leads out"):
        await laptop().list(str(inside), most=9, closed=True)
    (inside / "folder").unlink()
    (inside / "folder").symlink_to("more")
    with pytest.raises(BadTree, match="it is a link to a folder"):
        await laptop().list(str(inside), most=9, closed=True)
    (inside / "folder").unlink()
    os.mkfifo(inside / "pipe")
    with pytest.raises(BadTree, match="pipe"):
        await laptop().list(str(inside), most=9, closed=True)


async def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "b\udcff.txt").write_text("x")
    with pytest.raises(SourceRefused, match="is no UTF-8; rename that file"):
        await keys(laptop(), str(tmp_path))
    assert await keys(laptop(), str(tmp_path), "*.md") == []


async def test_no_more_is_listed_than_asked_for(tmp_path: Path) -> None:
    put(tmp_path, *(f"{i}.txt" for i in range(5)))
    assert len(await laptop().list(str(tmp_path), most=3)) == 3


async def test_a_file_that_is_not_what_it_was_is_not_read(tmp_path: Path) -> None:
    put(tmp_path, "a.txt")
    (one,) = await laptop().list(str(tmp_path), most=MANY)
    (tmp_path / "a.txt").write_text("A.txt")
    with pytest.raises(SourceChanged, match="it has changed since it was listed; put back"):
        await laptop().read(one.uri, etag=one.etag)


@pytest.mark.parametrize("address", ["/etc", "file:///etc", "etc", "http://host/x", "", 7, None])
async def test_a_pool_lists_no_place_but_its_store(address: object) -> None:
    with pytest.raises(SourceRefused) as refused:
        await Sources(open_store, files=False).list(address, most=MANY)  # type: ignore[arg-type]
    assert str(refused.value).count("\n") == 0


@pytest.fixture
def bucket(s3_server: S3Server, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(s3_server, f"sources-{request.node.name}")


async def test_objects_below_a_prefix_are_listed_and_read_whatever_their_names(bucket: Bucket) -> None:
    names = ["2024/a b.txt", "2024/c#1?.txt", "2024/d%20.md", "2024/.hidden", "é.txt"]
    bucket.put(*names)
    bucket.put("folder/", content=b"")
    sources = bucket.sources()
    found = await sources.list(bucket.uri, most=MANY)
    assert [one.key for one in found] == ["2024/a b.txt", "2024/c#1?.txt", "2024/d%20.md", "é.txt"]
    for one in found:
        assert one.uri == f"{bucket.uri}/{one.key}"
        assert one.size == len(one.key.encode())
        assert await sources.read(one.uri, etag=one.etag) == one.key.encode()
    assert await keys(sources, f"{bucket.uri}/", "2024/*.txt") == ["2024/a b.txt", "2024/c#1?.txt"]
    assert await keys(sources, f"{bucket.uri}/2024") == ["a b.txt", "c#1?.txt", "d%20.md"]
    assert await keys(sources, f"{bucket.uri}/20") == []


async def test_an_object_that_was_written_again_is_not_read(bucket: Bucket) -> None:
    bucket.put("a.txt")
    sources = bucket.sources()
    (one,) = await sources.list(bucket.uri, most=MANY)
    bucket.put("a.txt", content=b"A.txt")
    with pytest.raises(SourceChanged):
        await sources.read(one.uri, etag=one.etag)


async def test_a_ledger_in_the_bucket_is_neither_listed_nor_read(bucket: Bucket) -> None:
    bucket.put("in/a.txt", "ledger/runs/x")
    sources = bucket.sources(ledger=f"{bucket.uri}/ledger")
    assert await keys(sources, bucket.uri) == ["in/a.txt"]
    for inside in (f"{bucket.uri}/ledger", f"{bucket.uri}/ledger/runs", f"{bucket.root}//{bucket.name}/ledger/"):
        with pytest.raises(SourceRefused, match="it is inside the ledger"):
            await keys(sources, inside)


async def test_a_bucket_that_is_not_there_is_refused(s3_server: S3Server, bucket: Bucket) -> None:
    with pytest.raises(SourceRefused, match="the bucket does not exist"):
        await keys(bucket.sources(), "s3://no-such-bucket-at-all/in")
