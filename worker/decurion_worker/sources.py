"""Files that a run reads: `inputFrom`, `itemsFrom` and `load`. What is read or listed goes into the ledger at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from decurion_crds.canonical import Json
from decurion_crds.errors import InputError
from decurion_crds.globs import Glob
from decurion_ledger import Store
from decurion_ledger.errors import AccessDenied, BucketMissing, NotFound, StoreError
from decurion_ledger.stores import OthersKeys
from decurion_worker.errors import SourceChanged, SourceMissing, SourceRefused
from decurion_worker.folders import Listed, digest_of, files_below, hidden

MAX_BYTES = 256 * 1024 * 1024
"""The largest source that is read, in bytes."""
_SPLIT = "split it"
_RAISE = "raise maxBytes, or split it"


class _Place(NamedTuple):
    """Where an address leads: to `path` on this machine, or to `key` of the bucket at `root`."""

    root: str = ""
    key: str = ""
    path: Path | None = None


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

    async def read(self, uri: Json, *, etag: str = "", most: int = MAX_BYTES) -> bytes:
        """The bytes of one object or file, of which there are at most `most`.

        Raises `SourceMissing` when there is none, `SourceRefused` for a place this runner may not read or a scheme it
        does not know, `SourceChanged` when it is not what had the `etag`, `StoreError` when the store does not answer.
        """
        uri, place = self._place(uri)
        if place.path is not None:
            with _files(uri):
                data = await asyncio.to_thread(_read, uri, place.path, most)
            if etag and digest_of(data) != etag:
                raise SourceChanged(uri)
            return data
        return await self._object(uri, place, etag, most)

    async def list(self, prefix: Json, *, glob: str | None = None, most: int, closed: bool = False) -> list[Listed]:
        """The files below a folder or prefix whose keys fit `glob`, in order of their keys: at most `most` of them.

        Names that begin with a dot are left out, and what lies inside the ledger. `closed`: a
        folder of this machine is refused by `BadTree` where it has links that lead out, or what is no plain file.
        Raises as `read` does.
        """
        uri, place = self._place(prefix)
        pattern = Glob(glob) if glob is not None else None
        folder = uri.rstrip("/")
        if place.path is None:
            found = [one async for one in self._objects(folder, place, pattern, most)]
            return sorted(found, key=lambda one: one.key)
        with _files(uri):
            if place.path.is_file():
                raise SourceRefused(uri, "it is no folder; write the folder, or jsonl for a file of items")
            wanted = pattern.fits if pattern is not None else lambda key: True
            leave = _local(self._ledger)
            files = await asyncio.to_thread(files_below, place.path, wanted, leave=leave, most=most, closed=closed)
        return [Listed(one.key, _below(folder, uri, one.key), one.size, one.etag) for one in files]

    def _place(self, uri: Json) -> tuple[str, _Place]:
        """An address, and where it leads. Raises `SourceRefused`."""
        if not isinstance(uri, str):
            raise SourceRefused(repr(uri)[:100], "an address is a text, such as s3://bucket/key")
        if not uri.strip():
            raise SourceRefused(repr(uri), "there is no address; write one, such as s3://bucket/key")
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            raise SourceRefused(uri, f"it is no address ({error})") from error
        if parts.scheme in ("", "file"):
            return uri, self._file(uri, Path(unquote(parts.path) if parts.scheme else uri))
        if parts.scheme in ("s3", "memory"):
            # Not `parts.path`: ? and # are letters of a key.
            bucket, _, key = uri.partition("://")[2].partition("/")
            place = _Place(root=f"{parts.scheme}://{bucket}", key=key.lstrip("/"))
            if self._of_ledger(f"{place.root}/{place.key}/"):
                raise SourceRefused(uri, "it is inside the ledger; put inputs under a prefix of their own")
            return uri, place
        raise SourceRefused(uri, "use s3://bucket/key, or file:///path on a laptop")

    def _file(self, uri: str, path: Path) -> _Place:
        if not self._files:
            raise SourceRefused(
                uri, "local files are read by `decurion run` only; put it into the pool's store as s3://…"
            )
        return _Place(path=path if path.is_absolute() else self.base / path)

    async def _object(self, uri: str, place: _Place, etag: str, most: int) -> bytes:
        with _objects(uri):
            store = self._store(place.root)
            found = await store.head(place.key)
            if etag and found.etag != etag:
                raise SourceChanged(uri)
            _check_size(uri, found.size, most)
            data = await store.get(place.key)
            # The read may have met a newer object than the first look.
            if etag and (await store.head(place.key)).etag != etag:
                raise SourceChanged(uri)
            _check_size(uri, len(data), most)
            return data

    async def _objects(self, folder: str, place: _Place, glob: Glob | None, most: int) -> AsyncIterator[Listed]:
        above = f"{place.key.rstrip('/')}/" if place.key.rstrip("/") else ""
        count = 0
        with _objects(folder):
            async for one in self._store(place.root).list(above + (glob.fixed if glob is not None else "")):
                key = one.key[len(above) :]
                uri = f"{place.root}/{one.key}"
                if hidden(key) or (glob is not None and not glob.fits(key)) or self._of_ledger(uri):
                    continue
                if count == most:
                    return
                count += 1
                yield Listed(key, uri, one.size, one.etag)

    def _of_ledger(self, uri: str) -> bool:
        return bool(self._ledger) and uri.startswith(f"{self._ledger}/")

    def _store(self, root: str) -> Store:
        if root not in self._stores:
            store = self._opener(root)
            self._stores[root] = store.for_reading() if isinstance(store, OthersKeys) else store
        return self._stores[root]


@contextmanager
def _files(uri: str) -> Iterator[None]:
    """What the file system says of `uri`, in errors of sources."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise SourceMissing(uri) from None
    except OSError as error:
        raise SourceRefused(uri, f"it cannot be read: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise SourceRefused(uri, f"the name {error.object!a} in it is no UTF-8; rename that file") from error


@contextmanager
def _objects(uri: str) -> Iterator[None]:
    """What a store says of `uri`, in errors of sources."""
    try:
        yield
    except NotFound:
        raise SourceMissing(uri) from None
    except (InputError, AccessDenied, BucketMissing) as error:
        raise SourceRefused(uri, str(error)) from error
    except StoreError as error:
        if type(error) is not StoreError:
            raise
        # An answer about this request, such as a key that is too long: the same one is had again and again.
        raise SourceRefused(uri, f"the store refuses to give it ({error.reason}); see what it says") from error


def _read(uri: str, path: Path, most: int) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(uri) if not path.exists() else SourceRefused(uri, "it is no regular file")
    _check_size(uri, path.stat().st_size, most)
    return path.read_bytes()


def _check_size(uri: str, size: int, most: int) -> None:
    if size > most:
        raise SourceRefused(uri, f"it has {size} bytes, more than {most}; {_SPLIT if most == MAX_BYTES else _RAISE}")


def _below(folder: str, uri: str, key: str) -> str:
    """The address of a file in the form in which that of its folder was given."""
    return f"{folder}/{quote(key) if uri.startswith('file:') else key}"


def _local(ledger: str) -> Path | None:
    """The folder of a ledger on this machine."""
    if not ledger or "://" not in ledger:
        return Path(ledger).expanduser().absolute() if ledger else None
    parts = urlsplit(ledger)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
