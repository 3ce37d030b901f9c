"""A store in an S3-compatible bucket, through boto3 in a bounded pool of threads.

The client repeats nothing by itself: a repeated conditional write would meet its own object and report a
rival. Whoever needs an answer repeats the request and reads back (see `decurion_ledger.slots`). Writes carry
the SHA-256 of their body, so that the store refuses what was changed on the way.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
    TokenRetrievalError,
)

from decurion_ledger.errors import (
    AccessDenied,
    BucketMissing,
    ClockSkewed,
    Conflict,
    CredentialsExpired,
    NotFound,
    NotOffered,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    TlsFailed,
    Unavailable,
)
from decurion_ledger.stores.port import ObjectInfo, Put, Range, check_key
from decurion_ledger.stores.uri import S3Options

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

    from decurion_ledger.stores.uri import Credentials

T = TypeVar("T")

THREADS = 32
CONNECT_SECONDS = 5
READ_SECONDS = 30

_KINDS: dict[str, type[StoreError]] = {
    "NoSuchBucket": BucketMissing,
    "ExpiredToken": CredentialsExpired,
    "ExpiredTokenException": CredentialsExpired,
    "TokenRefreshRequired": CredentialsExpired,
    "RequestTimeTooSkewed": ClockSkewed,
    "RequestExpired": ClockSkewed,
    "AccessDenied": AccessDenied,
    "AccountProblem": AccessDenied,
    "AllAccessDisabled": AccessDenied,
    "InvalidAccessKeyId": AccessDenied,
    "InvalidToken": AccessDenied,
    "SignatureDoesNotMatch": AccessDenied,
    "QuotaExceeded": StoreFull,
    "XMinioStorageFull": StoreFull,
    "NotImplemented": NotOffered,
    "BadDigest": Unavailable,
    "IncompleteBody": Unavailable,
    "RequestTimeout": Unavailable,
    "SlowDown": Unavailable,
    "ThrottlingException": Unavailable,
    "XAmzContentSHA256Mismatch": Unavailable,
}
"""What an answer's code means, where its status does not say it."""

_SAID = {
    "NoSuchBucket": "the bucket does not exist",
    "AccessDenied": "the credentials may not do this",
    "InvalidAccessKeyId": "the access key is not known",
    "SignatureDoesNotMatch": "the secret key is not that of the access key",
    "ExpiredToken": "the credentials have expired",
    "RequestTimeTooSkewed": "this machine's clock and the store's are too far apart",
}


class S3Store:
    """Objects of `bucket` whose keys start with `prefix` and a slash.

    What is not given comes from the environment, as for every AWS client: credentials, region, and the
    endpoint from `AWS_ENDPOINT_URL_S3`. With an endpoint, buckets are addressed by path. Two variables of our own are
    for stores that want it otherwise: `DECURION_S3_ADDRESSING` and `DECURION_S3_CHECKSUM`, see `S3Options`.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        credentials: Credentials | None = None,
        options: S3Options | None = None,
    ) -> None:
        wanted = options or S3Options()
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._checks = _choice("DECURION_S3_CHECKSUM", ("sha256", "md5", "none"), wanted.checksum)
        self._client = _client(endpoint_url, region, credentials, wanted)
        self._pool = ThreadPoolExecutor(THREADS, "decurion-s3-store")
        self._any_key = False

    async def put_new(self, key: str, data: bytes) -> Put:
        try:
            await self._call("PUT", key, self._put_object, data, IfNoneMatch="*")
        except _PreconditionFailed:
            return Put.EXISTS
        return Put.CREATED

    async def put(self, key: str, data: bytes) -> None:
        await self._call("PUT", key, self._put_object, data)

    async def get(self, key: str, range: Range | None = None) -> bytes:
        if range is not None and range[1] is not None and range[0] >= range[1]:
            await self.head(key)
            return b""
        try:
            return await self._call("GET", key, self._get_object, range)
        except _RangeBeyondEnd:
            return b""

    async def head(self, key: str) -> ObjectInfo:
        return await self._call("HEAD", key, self._head_object)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        # compared here: some stores list folder by folder, and would skip keys when asked to start in the middle
        start = self._prefix + after
        token: str | None = None
        while True:
            page = await self._call("LIST", prefix, self._list_objects, token)
            for item in page.get("Contents", ()):
                if item["Key"] > start:
                    yield _info(item["Key"][len(self._prefix) :], item["Size"], item)
            token = page.get("NextContinuationToken")
            if token is None:
                return

    async def delete(self, key: str) -> None:
        await self._call("DELETE", key, self._delete_object)

    async def delete_versions(self, key: str) -> None:
        await self._call("DELETE", key, self._delete_object)
        try:
            await self._call("DELETE", key, self._delete_versions)
        except NotOffered:
            return  # a store without versions

    def for_reading(self) -> S3Store:
        """The same bucket, with this store's threads and connections, whose objects are read under any key."""
        other = copy.copy(self)
        other._any_key = True
        return other

    async def put_claiming(self, key: str, data: bytes, sha256: bytes) -> None:
        await self._call("PUT", key, self._put_object, data, ChecksumSHA256=base64.b64encode(sha256).decode())

    async def aclose(self) -> None:
        """Waits for the requests that are running, at most their time-outs."""
        await asyncio.to_thread(self._pool.shutdown, wait=True)
        self._client.close()

    async def _call(self, verb: str, key: str, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        if verb != "LIST" and not self._any_key:
            check_key(key)

        def answer() -> T:
            try:
                return work(self._prefix + key, *arguments, **named)
            except (ClientError, BotoCoreError) as e:
                error = _store_error(f"{verb} {self.uri}/{key}", e)
                raise (self._why_denied(error) if isinstance(error, AccessDenied) else error) from e

        return await asyncio.get_running_loop().run_in_executor(self._pool, answer)

    def _why_denied(self, denied: AccessDenied) -> StoreError:
        """Some stores answer a write with 403 when the bucket is gone: to create it would be denied."""
        try:
            self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        except (ClientError, BotoCoreError) as e:
            found = _store_error(denied.request, e)
            return found if isinstance(found, BucketMissing) else denied
        return denied

    def _put_object(self, key: str, data: bytes, **headers: Any) -> None:
        if not headers.keys() & {"ChecksumSHA256"}:
            headers |= self._checksum(data)
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data, **headers)

    def _checksum(self, data: bytes) -> dict[str, str]:
        if self._checks == "sha256":
            return {"ChecksumSHA256": base64.b64encode(hashlib.sha256(data).digest()).decode()}
        if self._checks == "md5":
            digest = hashlib.md5(data, usedforsecurity=False).digest()
            return {"ContentMD5": base64.b64encode(digest).decode()}
        return {}

    def _get_object(self, key: str, range: Range | None) -> bytes:
        asked: dict[str, Any] = {} if range is None else {"Range": _range_header(range)}
        with self._client.get_object(Bucket=self._bucket, Key=key, **asked)["Body"] as body:
            return body.read()

    def _head_object(self, key: str) -> ObjectInfo:
        found = self._client.head_object(Bucket=self._bucket, Key=key)
        return _info(key[len(self._prefix) :], found["ContentLength"], found)

    def _list_objects(self, prefix: str, token: str | None) -> dict[str, Any]:
        place: dict[str, Any] = {} if token is None else {"ContinuationToken": token}
        return dict(self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **place))

    def _delete_object(self, key: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=key)

    def _delete_versions(self, key: str) -> None:
        place: dict[str, Any] = {}
        while True:
            page = self._client.list_object_versions(Bucket=self._bucket, Prefix=key, **place)
            for one in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
                if one["Key"] == key:
                    self._client.delete_object(Bucket=self._bucket, Key=key, VersionId=one["VersionId"])
            if not page.get("IsTruncated"):
                return
            place = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}


class _PreconditionFailed(StoreError):
    """412: an object stands under the key. Never leaves this module."""


class _RangeBeyondEnd(StoreError):
    """416: the range starts behind the object's end. Never leaves this module."""


def _choice(variable: str, choices: Sequence[str], given: str = "") -> str:
    """What was `given`, else what an environment variable says, else the first of `choices`. Raises
    `StoreMisconfigured`.
    """
    value = given or os.environ.get(variable) or choices[0]
    if value not in choices:
        raise StoreMisconfigured(f"{variable} is {value!r:.40}, and may be {', '.join(dict.fromkeys(choices))}")
    return value


def _addressing(endpoint_url: str | None, given: str) -> Literal["path", "virtual", "auto"]:
    """How a bucket is named to the store: in the path where it is not Amazon's, for others know its name seldom."""
    match _choice("DECURION_S3_ADDRESSING", ("path" if endpoint_url else "auto", "path", "virtual", "auto"), given):
        case "path":
            return "path"
        case "virtual":
            return "virtual"
    return "auto"


def _client(
    endpoint_url: str | None, region: str | None, credentials: Credentials | None, options: S3Options
) -> S3Client:
    endpoint_url = endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=THREADS,
        tcp_keepalive=True,
        # other stores do not know the checksums that newer clients add by default
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": _addressing(endpoint_url, options.addressing)},
    )
    keys: dict[str, Any] = {}
    if credentials is not None:
        keys = {
            "aws_access_key_id": credentials.access_key,
            "aws_secret_access_key": credentials.secret_key,
            "aws_session_token": credentials.session_token,
        }
    try:
        session = boto3.session.Session(region_name=region)
        return session.client(
            "s3",
            endpoint_url=endpoint_url,
            region_name=session.region_name or "us-east-1",
            config=config,
            # None leaves it to the environment
            verify=options.ca_file or None,
            **keys,
        )
    except (BotoCoreError, ValueError) as e:
        raise StoreMisconfigured(str(e)) from e


def _info(key: str, size: int, answer: Mapping[str, Any]) -> ObjectInfo:
    modified: datetime | None = answer.get("LastModified")
    return ObjectInfo(key, size, str(answer.get("ETag", "")).strip('"'), modified.timestamp() if modified else 0.0)


def _range_header(range: Range) -> str:
    start, end = range
    if start < 0:
        return f"bytes={start}"
    return f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"


def _store_error(request: str, e: ClientError | BotoCoreError) -> StoreError:
    if not isinstance(e, ClientError):
        if isinstance(e, NoCredentialsError | PartialCredentialsError):
            return AccessDenied(request, "no credentials were found")
        if isinstance(e, TokenRetrievalError):
            return CredentialsExpired(request, str(e))
        if isinstance(e, SSLError):
            return TlsFailed(request, str(e))
        return Unavailable(request, str(e))
    code = str(e.response.get("Error", {}).get("Code", ""))
    status = int(e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    kind = _kind(code, status)
    said = _SAID.get(code) or (str(e.response["Error"].get("Message", "")).rstrip(".") if kind is StoreError else "")
    return kind(request, f"{said} ({code}, {status})" if said else f"{code} ({status})")


def _kind(code: str, status: int) -> type[StoreError]:
    if status == 412:
        return _PreconditionFailed
    if status == 416:
        return _RangeBeyondEnd
    if code in _KINDS:
        return _KINDS[code]
    if status == 404:
        return NotFound
    if status == 409:
        return Conflict
    if status in (401, 403):
        return AccessDenied
    if status == 501:
        return NotOffered
    if status == 507:
        return StoreFull
    return Unavailable if status >= 500 or status == 429 else StoreError
