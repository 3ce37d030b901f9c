"""What every store must do, and what only one kind does. One suite for memory, local folder and a real S3
server.
"""

import asyncio
import os
import secrets
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.s3 import Identity, S3Server
from decurion_ledger.errors import (
    AccessDenied,
    BadKey,
    BadStoreUri,
    BucketMissing,
    ClockSkewed,
    Conflict,
    CredentialsExpired,
    NotFound,
    NotOffered,
    ReadOnly,
    RootReplaced,
    StoreError,
    StoreFull,
    TlsFailed,
    Unavailable,
)
from decurion_ledger.stores import Counted, Credentials, LocalStore, MemoryStore, Put, Store, open_store


async def keys(store: Store, prefix: str, after: str = "") -> list[str]:
    return sorted([info.key async for info in store.list(prefix, after)])


async def test_a_key_is_created_once_and_keeps_its_first_content(store: Store) -> None:
    assert await store.put_new("log/000000000000", b"first") is Put.CREATED
    assert await store.put_new("log/000000000000", b"second") is Put.EXISTS
    assert await store.get("log/000000000000") == b"first"


async def test_of_concurrent_creations_exactly_one_wins_and_its_bytes_stay(store: Store) -> None:
    contents = [f"writer {i}".encode() * 50 for i in range(8)]
    results = await asyncio.gather(*(store.put_new("slot", content) for content in contents))
    assert results.count(Put.CREATED) == 1
    assert await store.get("slot") == contents[results.index(Put.CREATED)]


async def test_put_replaces_and_creates(store: Store) -> None:
    await store.put("a/tail", b"1")
    await store.put("a/tail", b"22")
    assert await store.get("a/tail") == b"22"
    assert await store.put_new("a/tail", b"3") is Put.EXISTS


async def test_empty_and_large_objects_come_back_as_they_were(store: Store) -> None:
    large = os.urandom(5 * 1024 * 1024)
    await store.put_new("empty", b"")
    await store.put_new("large", large)
    assert await store.get("empty") == b""
    assert await store.get("large") == large
    assert (await store.head("large")).size == len(large)
    assert (await store.head("empty")).size == 0


@pytest.mark.parametrize(
    "range",
    [(0, None), (0, 4), (3, 7), (3, None), (9, 10), (8, 99), (10, None), (42, None), (42, 43), (4, 4), (-3, None),
     (-99, None)],
)  # fmt: skip
async def test_ranges_are_those_of_a_slice(store: Store, range: tuple[int, int | None]) -> None:
    await store.put_new("digits", b"0123456789")
    assert await store.get("digits", range) == b"0123456789"[slice(*range)]


async def test_ranges_of_an_empty_object_are_empty(store: Store) -> None:
    await store.put_new("empty", b"")
    assert await store.get("empty", (-3, None)) == b""
    assert await store.get("empty", (0, 3)) == b""


async def test_missing_objects_are_not_found_and_their_address_is_named(store: Store) -> None:
    await store.put_new("a/b", b"")
    for request in (store.get("a/c"), store.get("a"), store.get("a/b/c"), store.head("a/c"), store.head("a")):
        with pytest.raises(NotFound, match=r"(GET|HEAD) .*a"):
            await request
    with pytest.raises(NotFound):
        await store.get("a/c", (0, 3))


async def test_listing_is_by_prefix_and_after_a_key(store: Store) -> None:
    for key in ("a/b/2", "a/b/1", "a/b-x/1", "a/b.x", "a/c", "b", "a-b/1"):
        await store.put_new(key, key.encode())
    assert await keys(store, "") == sorted(["a/b/2", "a/b/1", "a/b-x/1", "a/b.x", "a/c", "b", "a-b/1"])
    assert await keys(store, "a/") == ["a/b-x/1", "a/b.x", "a/b/1", "a/b/2", "a/c"]
    assert await keys(store, "a/b") == ["a/b-x/1", "a/b.x", "a/b/1", "a/b/2"]
    assert await keys(store, "a/b/") == ["a/b/1", "a/b/2"]
    assert await keys(store, "a/", "a/b.x") == ["a/b/1", "a/b/2", "a/c"]
    assert await keys(store, "a/", "a/b/1") == ["a/b/2", "a/c"]
    assert await keys(store, "a/", "a/b/15") == ["a/b/2", "a/c"]
    assert await keys(store, "zzz") == []
    assert [info.size async for info in store.list("a/b.")] == [5]


async def test_memory_and_folders_list_in_order_of_keys(tmp_path: Path) -> None:
    for store in (MemoryStore(), LocalStore(tmp_path)):
        names = ["a-b/1", "a/b-x/1", "a/b.x", "a/b/1", "a/b/2", "a/c", "b"]
        for name in reversed(names):
            await store.put_new(name, b"")
        assert [info.key async for info in store.list("")] == names
        await store.aclose()


async def test_listing_goes_beyond_one_page(store: Store) -> None:
    names = [f"many/{i:05d}" for i in range(1100)]
    for start in range(0, len(names), 50):
        await asyncio.gather(*(store.put_new(name, b"") for name in names[start : start + 50]))
    assert await keys(store, "many/") == names
    assert await keys(store, "many/", "many/01050") == names[1051:]


async def test_deleting_is_repeatable_and_frees_the_key(store: Store) -> None:
    await store.put_new("a/b", b"1")
    await store.delete("a/b")
    await store.delete("a/b")
    await store.delete("never/was")
    assert await keys(store, "a") == []
    with pytest.raises(NotFound):
        await store.get("a/b")
    assert await store.put_new("a/b", b"2") is Put.CREATED


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", ".tmp/x", "a b", "ä", "a\n", "a" * 513]
)
async def test_keys_that_some_store_would_misread_are_refused_by_every_store(store: Store, key: str) -> None:
    for request in (store.put_new(key, b""), store.put(key, b""), store.get(key), store.head(key), store.delete(key)):
        with pytest.raises(BadKey):
            await request


async def test_a_cancelled_write_leaves_the_store_usable(store: Store) -> None:
    writing = asyncio.ensure_future(store.put_new("x", b"1" * 1_000_000))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await store.put_new("x", b"2")
    assert await store.get("x") in (b"1" * 1_000_000, b"2")


async def test_counting_adds_up_requests_and_bytes() -> None:
    counted = Counted(MemoryStore())
    await counted.put_new("a", b"123")
    await counted.put_new("a", b"123")
    await counted.put("b", b"1")
    await counted.get("a", (0, 2))
    await counted.head("a")
    assert [info.key async for info in counted.list("")] == ["a", "b"]
    await counted.delete("a")
    assert (counted.puts, counted.gets, counted.lists, counted.deletes) == (3, 2, 1, 1)
    assert (counted.bytes_in, counted.bytes_out) == (7, 2)


@pytest.mark.parametrize("uri", ["file://{0}", "{0}", "{0}/"])
async def test_a_folder_has_several_addresses(uri: str, tmp_path: Path) -> None:
    store = open_store(uri.format(tmp_path / "a b" if "file" not in uri else f"{tmp_path}/a%20b"))
    await store.put_new("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"
    assert store.uri == (tmp_path / "a b").as_uri()
    await store.aclose()


@pytest.mark.parametrize(
    "uri", ["", "http://x", "s3://", "s3://b/../x", "file://host/x", "file://", "s3://b/x?y=1", "gs://b/x"]
)
def test_addresses_of_no_store_are_refused_with_the_remedy(uri: str) -> None:
    with pytest.raises((BadStoreUri, BadKey), match=r": .+\."):
        open_store(uri)


def test_secrets_do_not_show_in_credentials() -> None:
    assert "hidden" not in repr(Credentials("open", "hidden", "hidden"))


_RACE = """
import asyncio, pathlib, sys
from decurion_ledger.stores import LocalStore, Put
async def main():
    store = LocalStore(pathlib.Path(sys.argv[1]))
    sys.stdin.read(1)
    won = [i for i in range(40) if await store.put_new(f"r/{i}", sys.argv[2].encode()) is Put.CREATED]
    print(*won)
    await store.aclose()
asyncio.run(main())
"""


def test_processes_racing_on_a_folder_have_one_winner_for_each_key(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RACE, str(tmp_path)]
    racers = [
        subprocess.Popen([*command, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for i in range(3)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("g")
        racer.stdin.flush()
    won = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert sorted(int(key) for keys in won for key in keys) == list(range(40))
    for i, keys_won in enumerate(won):
        assert all((tmp_path / "r" / key).read_text() == str(i) for key in keys_won)


async def test_a_folder_holds_no_temporary_files_after_its_writes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.put_new("a", b"1")
    await store.put_new("a", b"2")
    await store.put("b", b"3")
    assert list((tmp_path / ".tmp").iterdir()) == []
    await store.aclose()


async def test_a_file_or_folder_in_the_way_is_an_error_and_not_a_winner(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.put_new("a", b"1")
    await store.put_new("b/c", b"1")
    for key in ("a/b", "b"):
        for request in (store.put_new(key, b"2"), store.put(key, b"2")):
            with pytest.raises(StoreError, match="in the way"):
                await request
    assert list((tmp_path / ".tmp").iterdir()) == []
    await store.aclose()


async def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    store = LocalStore(Path("/proc/decurion"))
    with pytest.raises(StoreError, match=r"PUT file:///proc/decurion/a: .+; "):
        await store.put_new("a", b"1")
    await store.aclose()


_LIMITED = """
import asyncio, pathlib, resource, sys
from decurion_ledger.errors import StoreFull
from decurion_ledger.stores import LocalStore
async def main():
    store = LocalStore(pathlib.Path(sys.argv[1]))
    await store.put_new("a/small", b"1")
    for verb in (store.put_new, store.put):
        try:
            await verb("a/large", b"1" * 8192)
        except StoreFull as e:
            print(e)
    await store.put_new("a/other", b"1")
    await store.aclose()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
asyncio.run(main())
"""


def test_a_write_beyond_a_limit_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("File too large; make room, or raise the limit." in line for line in lines)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["other", "small"]


async def test_a_full_disk_is_told_and_what_was_written_stays(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    written = 0
    try:
        while written < 100:
            await store.put_new(f"a/{written}", os.urandom(64 * 1024))
            written += 1
    except StoreFull as error:
        told = str(error)
    assert "No space left on device; make room" in told
    assert await keys(store, "a/") == sorted(f"a/{i}" for i in range(written))
    assert list((small_disk / ".tmp").iterdir()) == []
    await store.delete("a/0")
    assert await store.put_new("a/0", b"1") is Put.CREATED
    await store.aclose()


def make_read_only(mount: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)


async def test_a_mount_that_turned_read_only_is_told(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    await store.put_new("a", b"1")
    make_read_only(small_disk)
    with pytest.raises(ReadOnly, match="mount it writable"):
        await store.put_new("b", b"1")
    assert await store.get("a") == b"1"
    await store.aclose()


async def test_a_folder_that_is_replaced_takes_nothing_more(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "ledger")
    await store.put_new("log/0", b"1")
    await store.put_new("log/1", b"1")
    (tmp_path / "ledger").rename(tmp_path / "away")
    for reason in ("is gone", "another folder"):
        for request in (store.put_new("log/2", b"1"), store.put("tail", b"1")):
            with pytest.raises(RootReplaced, match=reason):
                await request
        (tmp_path / "ledger").mkdir(exist_ok=True)
    (tmp_path / "ledger").rmdir()
    (tmp_path / "away").rename(tmp_path / "ledger")
    assert await store.put_new("log/2", b"1") is Put.CREATED
    await store.aclose()


@pytest.mark.s3
async def test_a_missing_bucket_and_wrong_keys_are_named(s3_server) -> None:
    good = Credentials(s3_server.access_key, s3_server.secret_key)
    missing = open_store("s3://no-such-bucket-here", endpoint_url=s3_server.endpoint_url, credentials=good)
    with pytest.raises(BucketMissing, match="create or restore the bucket"):
        await missing.get("a")
    await missing.aclose()
    for wrong in (Credentials(s3_server.access_key, "wrong"), Credentials("wrong", s3_server.secret_key)):
        denied = open_store(f"s3://{s3_server.bucket}/x", endpoint_url=s3_server.endpoint_url, credentials=wrong)
        with pytest.raises(AccessDenied) as caught:
            await denied.put_new("a", b"1")
        assert s3_server.secret_key not in str(caught.value)
        await denied.aclose()


@pytest.mark.s3
async def test_a_bucket_that_is_gone_is_named_also_where_writing_is_answered_with_denied(s3_server: S3Server) -> None:
    s3_server.grant("writer", Identity("writer-key", "writer-secret"))
    store = open_store(
        f"s3://gone-{secrets.token_hex(4)}",
        endpoint_url=s3_server.endpoint_url,
        credentials=Credentials("writer-key", "writer-secret"),
    )
    deadline = asyncio.get_running_loop().time() + 20
    while True:
        try:
            await store.put_new("a", b"1")
        except AccessDenied:  # the server does not know the key yet
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.1)
        except BucketMissing:
            break
    await store.aclose()


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("NoSuchBucket", 404, BucketMissing),
        ("AccessDenied", 403, AccessDenied),
        ("InvalidAccessKeyId", 403, AccessDenied),
        ("SignatureDoesNotMatch", 403, AccessDenied),
        ("ExpiredToken", 400, CredentialsExpired),
        ("RequestTimeTooSkewed", 403, ClockSkewed),
        ("QuotaExceeded", 403, StoreFull),
        ("XMinioStorageFull", 507, StoreFull),
        ("NotImplemented", 501, NotOffered),
        ("SlowDown", 503, Unavailable),
        ("InternalError", 500, Unavailable),
        ("TooManyRequests", 429, Unavailable),
        ("ConditionalRequestConflict", 409, Conflict),
    ],
)
async def test_each_answer_of_a_server_has_its_error(code: str, status: int, kind: type[StoreError]) -> None:
    body = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = open_store("s3://b/p", endpoint_url=f"http://127.0.0.1:{port}", credentials=Credentials("a", "b"))
    with pytest.raises(StoreError) as caught:
        await store.get("a")
    assert type(caught.value) is kind
    assert str(status) in str(caught.value)
    await store.aclose()
    server.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a key and a certificate for 127.0.0.1 that nobody trusts."""
    file = tmp_path / "server.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -keyout - -out -"
    file.write_bytes(subprocess.run(command.split(), check=True, capture_output=True).stdout)
    return file


async def test_a_server_without_a_trusted_certificate_is_told(certificate: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    store = open_store("s3://b/p", endpoint_url=f"https://127.0.0.1:{port}", credentials=Credentials("a", "b"))
    with pytest.raises(TlsFailed, match="AWS_CA_BUNDLE"):
        await store.get("a")
    await store.aclose()
    server.close()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        store = open_store("s3://bucket/x", endpoint_url=f"http://127.0.0.1:{port}", credentials=Credentials("a", "b"))
        with pytest.raises(Unavailable, match=f"PUT s3://bucket/x/a: .*{port}"):
            await store.put_new("a", b"1")
        await store.aclose()
