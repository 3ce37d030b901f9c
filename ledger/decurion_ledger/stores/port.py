"""The store port: what the ledger needs from a place that keeps objects."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable

from decurion_ledger.errors import BadKey

Range: TypeAlias = tuple[int, int | None]
"""Bytes `[start, end)`; `(-n, None)` are the last n bytes. What lies beyond the object's end is left out."""

MAX_KEY = 512
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class Put(Enum):
    """What a conditional write found."""

    CREATED = "created"
    EXISTS = "exists"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object. `etag` changes when its content does; it is empty where the place gives none. `modified` is when it
    was written last, in Unix seconds by the store's clock.
    """

    key: str
    size: int
    etag: str = field(default="", compare=False)
    modified: float = field(default=0.0, compare=False)


class Store(Protocol):
    """Objects under keys, in one place named by `uri`.

    Keys follow `check_key`; no key is the folder of another. Every verb may raise `Unavailable` or `AccessDenied`,
    then the request may have been carried out. A write is durable, and seen by every later read, when its verb
    returns. A cancelled verb may still be carried out later.
    """

    uri: str

    async def put_new(self, key: str, data: bytes) -> Put:
        """Write `data` unless an object stands under `key`; of concurrent calls exactly one gets `CREATED`.

        Raises `Conflict` when nothing was decided. `EXISTS` may be the answer to a caller whose own earlier
        write succeeded without being heard of: read back before believing in a rival.
        """

    async def put(self, key: str, data: bytes) -> None:
        """Write `data`, in place of what stands under `key`. Never used for anything that correctness rests
        on.
        """

    async def get(self, key: str, range: Range | None = None) -> bytes:
        """The object, or a part of it. Raises `NotFound`."""

    async def head(self, key: str) -> ObjectInfo:
        """Raises `NotFound`."""

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """The objects whose keys start with `prefix` and are greater than `after` by code point, in the store's
        order.
        """

    async def delete(self, key: str) -> None:
        """Remove the object; no error when there is none."""

    async def aclose(self) -> None:
        """Release threads and connections. The store is not used afterwards."""


@runtime_checkable
class OthersKeys(Protocol):
    """A store whose place may hold objects of others, under keys that do not follow `check_key`."""

    def for_reading(self) -> Store:
        """The same place, whose objects are read under any key. It is not written to, and not closed by itself."""


@runtime_checkable
class Versions(Protocol):
    """A store that may keep what was written over or deleted."""

    async def delete_versions(self, key: str) -> None:
        """Remove the object with all versions that the place keeps of it. Raises a store error when it may not say
        which there are.
        """


@runtime_checkable
class ChecksumSent(Protocol):
    """A store to which writes go with a checksum, over a network that may change them."""

    async def put_claiming(self, key: str, data: bytes, sha256: bytes) -> None:
        """Write `data` under the checksum `sha256`. Raises a store error when the store finds that it is not that of
        `data`.
        """


def check_key(key: str) -> str:
    """`key`, when it is fit for every store: 1 to 512 of `A-Z a-z 0-9 . _ - /`, no empty segment, none with a
    dot first.

    Raises `BadKey`.
    """
    if len(key) > MAX_KEY or not _KEY.fullmatch(key):
        raise BadKey(
            key[:80],
            f"a key has at most {MAX_KEY} letters, digits, . _ - and /, no segment empty or with a dot first",
        )
    return key
