"""S3 as other makers have it: names of buckets, checksums, and credentials that end in the middle."""

from __future__ import annotations

import json
import secrets
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from buckets import own_bucket
from cluster.certificates import Authority
from cluster.s3 import Identity, S3Server
from decurion_ledger import Credentials, S3Options, open_store
from decurion_ledger.errors import StoreMisconfigured, TlsFailed, Unavailable
from decurion_ledger.patience import REPEATED_WHEN_OPEN, Patience, SystemClock, patiently
from decurion_ledger.stores import Put
from decurion_worker.local_pool import LocalPoolConfig
from decurion_worker.serve_local import store_options


class _Answers(BaseHTTPRequestHandler):
    """Takes every request, and keeps its path, host and headers."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        body = self.server.answer()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing is printed."""


@contextmanager
def answering(tls: ssl.SSLContext | None = None) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


CHECKSUMS = {"x-amz-checksum-sha256", "content-md5", "x-amz-checksum-crc32", "x-amz-sdk-checksum-algorithm"}


@pytest.mark.parametrize(("kind", "sent"), [("", {"x-amz-checksum-sha256"}), ("md5", {"content-md5"}), ("none", set())])
async def test_no_checksum_is_sent_but_the_one_asked_for(
    kind: str, sent: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECURION_S3_CHECKSUM", kind)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with answering() as server:
        store = open_store("s3://bucket/led", endpoint_url=f"http://127.0.0.1:{server.server_port}", region="eu-nord-9")
        assert await store.put_new("a/b", b"body") is Put.CREATED
        await store.aclose()
    path, headers = server.seen[0]  # type: ignore[attr-defined]
    named = {name.lower() for name in headers}
    assert named & CHECKSUMS - {"x-amz-sdk-checksum-algorithm"} == sent
    assert path == "/bucket/led/a/b"
    assert "/eu-nord-9/s3/" in headers["Authorization"]
    assert headers["If-None-Match"] == "*"


async def test_a_bucket_is_named_in_the_host_where_a_store_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECURION_S3_ADDRESSING", "virtual")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    store = open_store("s3://bucket", endpoint_url="http://nowhere.invalid:9", region="r")
    with pytest.raises(Unavailable, match=r"http://bucket\.nowhere\.invalid:9/a/b"):
        await store.put("a/b", b"body")
    await store.aclose()


async def test_what_is_given_for_a_store_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECURION_S3_ADDRESSING", "virtual")
    monkeypatch.setenv("DECURION_S3_CHECKSUM", "sha256")
    keys, options = Credentials("a", "b"), S3Options(addressing="path", checksum="md5")
    with answering() as server:
        where = f"http://127.0.0.1:{server.server_port}"
        store = open_store("s3://bucket/led", endpoint_url=where, region="r", credentials=keys, options=options)
        await store.put("a/b", b"body")
        await store.aclose()
    path, headers = server.seen[0]  # type: ignore[attr-defined]
    assert path == "/bucket/led/a/b"
    assert {name.lower() for name in headers} & CHECKSUMS == {"content-md5"}


async def test_a_store_with_a_certificate_of_ones_own_authority_is_trusted_where_that_is_given(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue_server("store")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "store.crt", tmp_path / "store.key")
    with answering(tls) as server:
        where = f"https://127.0.0.1:{server.server_port}"
        config = LocalPoolConfig(str(tmp_path / "ingress"), "s3://bucket", "t", ca=authority.certificate)
        for options in (S3Options(), store_options(config)):
            store = open_store(
                "s3://bucket", endpoint_url=where, region="r", credentials=Credentials("a", "b"), options=options
            )
            if options.ca_file:
                await store.put("a/b", b"body")
            else:
                with pytest.raises(TlsFailed):
                    await store.put("a/b", b"body")
            await store.aclose()
    assert len(server.seen) == 1  # type: ignore[attr-defined]
    with pytest.raises(StoreMisconfigured, match="caBundle holds no certificates"):
        store_options(
            LocalPoolConfig(str(tmp_path / "ingress"), "s3://bucket", "t", ca="-----BEGIN CERTIFICATE-----\nx")
        )


@pytest.mark.parametrize("variable", ["DECURION_S3_CHECKSUM", "DECURION_S3_ADDRESSING"])
def test_a_choice_that_is_none_is_told(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "best")
    with pytest.raises(StoreMisconfigured, match=f"{variable} is 'best', and may be"):
        open_store("s3://bucket", endpoint_url="http://127.0.0.1:9")


@pytest.mark.s3
async def test_credentials_of_a_role_are_renewed_while_the_store_is_used(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from where a container of a cloud gets them; the first ones stop working, the store goes on."""
    with own_bucket(s3_server) as bucket, answering() as role:
        given = [bucket.who]

        def answer() -> bytes:
            who = given[-1]
            # within ten minutes of their end they are asked for anew
            end = (datetime.now(UTC) + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
            keys = {"AccessKeyId": who.access_key, "SecretAccessKey": who.secret_key, "Token": "", "Expiration": end}
            return json.dumps(keys).encode()

        role.answer = answer  # type: ignore[attr-defined]
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{role.server_port}/role")
        store = open_store(bucket.uri, endpoint_url=s3_server.endpoint_url, region=s3_server.region)
        assert await store.put_new("one", b"1") is Put.CREATED
        given.append(Identity(f"next-{secrets.token_hex(4)}", secrets.token_hex(10)))
        bucket.grant(given[-1], works=False)
        assert await patiently(
            lambda: store.put_new("two", b"2"),
            patience=Patience(total=30, blocked=30),
            clock=SystemClock(),
            repeated=REPEATED_WHEN_OPEN,
        ) in (Put.CREATED, Put.EXISTS)
        assert await store.get("one") == b"1"
        await store.aclose()
