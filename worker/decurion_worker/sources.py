"""Files that a run reads as a whole: `inputFrom` and `itemsFrom`. What is read is copied into the ledger at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from decurion_crds.canonical import Json
from decurion_crds.errors import InputError
from decurion_ledger import Store
from decurion_ledger.errors import AccessDenied, BucketMissing, NotFound
from decurion_worker.errors import SourceMissing, SourceRefused

MAX_BYTES = 256 * 1024 * 1024
"""The largest source that is read, in bytes."""


class Sources:
    """Reads by URI. `opener` opens the store of a bucket with the pool's credentials; `files` allows local paths.

    `base` is the folder that relative paths start from. Nothing under `ledger` is read: it holds other people's runs.
    """

    def __init__(
        self, opener: Callable[[str], Store], *, files: bool, base: Path | None = None, ledger: str = ""
    ) -> None:
        self._opener = opener
        self._ledger = ledger.rstrip("/")
        self._files = files
        self.base = base or Path.cwd()
        self._stores: dict[str, Store] = {}

    async def read(self, uri: Json) -> bytes:
        """The bytes of one object or file.

        Raises `SourceMissing` when there is none, `SourceRefused` for a place this runner may not read or a scheme it
        does not know, `StoreError` when the store does not answer.
        """
        if not isinstance(uri, str):
            raise SourceRefused(repr(uri)[:100], "an address is a text, such as s3://bucket/key")
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            raise SourceRefused(uri, f"it is no address ({error})") from error
        if parts.scheme in ("", "file"):
            return await self._file(uri, Path(unquote(parts.path) if parts.scheme else uri))
        if parts.scheme in ("s3", "memory"):
            return await self._object(uri, f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/"))
        raise SourceRefused(uri, "use s3://bucket/key, or file:///path on a laptop")

    async def _file(self, uri: str, path: Path) -> bytes:
        if not self._files:
            raise SourceRefused(
                uri, "local files are read by `decurion run` only; put it into the pool's store as s3://…"
            )
        path = path if path.is_absolute() else self.base / path
        try:
            return await asyncio.to_thread(_read, uri, path)
        except FileNotFoundError:
            raise SourceMissing(uri) from None
        except OSError as error:
            raise SourceRefused(uri, f"it cannot be read: {error.strerror}") from error

    async def _object(self, uri: str, root: str, key: str) -> bytes:
        if self._ledger and (uri == self._ledger or uri.startswith(f"{self._ledger}/")):
            raise SourceRefused(uri, "it is inside the ledger; put inputs under a prefix of their own")
        try:
            if root not in self._stores:
                self._stores[root] = self._opener(root)
            found = await self._stores[root].head(key)
            if found.size > MAX_BYTES:
                raise SourceRefused(uri, f"it has {found.size} bytes, more than {MAX_BYTES}; split it")
            return await self._stores[root].get(key)
        except NotFound:
            raise SourceMissing(uri) from None
        except (InputError, AccessDenied, BucketMissing) as error:
            raise SourceRefused(uri, str(error)) from error


def _read(uri: str, path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(uri) if not path.exists() else SourceRefused(uri, "it is no regular file")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise SourceRefused(uri, f"it has {size} bytes, more than {MAX_BYTES}; split it")
    return path.read_bytes()
