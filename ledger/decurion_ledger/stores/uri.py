"""From an address to a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from decurion_ledger.errors import BadStoreUri, MissingExtra
from decurion_ledger.stores.local import LocalStore
from decurion_ledger.stores.memory import MemoryStore
from decurion_ledger.stores.port import Store, check_key


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys of an S3 account. Only the access key shows in its `repr`."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class S3Options:
    """What some S3-compatible stores want otherwise; an empty text leaves it to the environment.

    `addressing`: how a bucket is named, `path`, `virtual` or `auto`. `checksum`: with which bodies are sent, `sha256`,
    `md5` or `none`. `ca_file`: certificates, as PEM, of who may vouch for the store's.
    """

    addressing: str = ""
    checksum: str = ""
    ca_file: str = ""


def open_store(
    uri: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    credentials: Credentials | None = None,
    options: S3Options | None = None,
) -> Store:
    """The store at `uri`; nothing is read or written yet.

    `file:///x`, `/x`, `./x` and `x/y` are local folders, `memory://name` is a new empty store,
    `s3://bucket/prefix` an S3-compatible one. The keyword arguments concern S3 only; what is not given comes
    from the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL_S3`, …) as for every AWS client. Raises
    `BadStoreUri`, or `MissingExtra` for `s3://` without boto3.
    """
    if not uri:
        raise BadStoreUri(uri, "give a folder, memory://name or s3://bucket/prefix")
    if "://" not in uri:
        return LocalStore(Path(uri).expanduser())
    parts = urlsplit(uri)
    if parts.query or parts.fragment:
        raise BadStoreUri(uri, "an address of a store has no ? and no #")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise BadStoreUri(uri, "write file:/// and an absolute path")
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "memory":
        return MemoryStore(parts.netloc + parts.path)
    if parts.scheme == "s3":
        return _open_s3(uri, parts.netloc, parts.path, endpoint_url, region, credentials, options)
    raise BadStoreUri(uri, f"{parts.scheme}:// is unknown, use a folder, memory://name or s3://bucket/prefix")


def _open_s3(
    uri: str,
    bucket: str,
    path: str,
    endpoint_url: str | None,
    region: str | None,
    credentials: Credentials | None,
    options: S3Options | None,
) -> Store:
    prefix = path.strip("/")
    if not bucket:
        raise BadStoreUri(uri, "write s3://bucket or s3://bucket/prefix")
    if prefix:
        check_key(prefix)
    try:
        from decurion_ledger.stores.s3 import S3Store
    except ModuleNotFoundError as e:
        if e.name not in ("boto3", "botocore"):
            raise
        raise MissingExtra(uri, "an S3 store needs boto3, install decurion[s3]") from e
    given = {"endpoint_url": endpoint_url, "region": region}
    return S3Store(bucket, prefix, **given, credentials=credentials, options=options)
