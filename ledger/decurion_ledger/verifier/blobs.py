"""Values that stand outside their record: blobs, and the chunks of wide lists."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from decurion_ledger.errors import NotFound
from decurion_ledger.stores.port import Store
from decurion_ledger.verifier.form import UNREADABLE, tree
from decurion_ledger.verifier.hashes import named_lists, stored_hash

_AT_ONCE = 16
SEALED = b"\x01"
"""The first byte of what is encrypted; no JSON begins with it."""
_OTHER_BYTES = "its bytes do not have the length and SHA-256 by which it is named"


async def optional(store: Store, key: str) -> bytes | None:
    try:
        return await store.get(key)
    except NotFound:
        return None


def blob_key(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}"


@dataclass(slots=True)
class Blobs:
    """`blobs` and `lists` were named and not fetched yet. `tell` takes a finding: code, key, one sentence.

    What is named twice is held against both: `checked` are the lists that were read, with what their index says.
    """

    tell: Callable[[str, str, str], None]
    blobs: dict[tuple[str, str, int], str] = field(default_factory=dict)
    lists: dict[tuple[str, int, str, int], None] = field(default_factory=dict)
    sealed: dict[tuple[str, int], str] = field(default_factory=dict)
    sealed_lists: dict[str, str] = field(default_factory=dict)
    """Encrypted blobs, and lists named by encrypted values, of which only the bytes can be checked."""
    checked: dict[str, tuple[int, str, int] | None] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the encrypted blobs that were read."""
    seen: set[str] = field(default_factory=set)
    """The names of all blobs that were asked for."""

    def name(self, value: str, sha256: str, size: int, record: str) -> None:
        """A record in the object `record` names this blob for the value whose hash is `value`."""
        self.blobs.setdefault((blob_key(sha256), value, size), record)

    def name_sealed(self, held: Mapping[str, Any], record: str) -> bool:
        """A record in the object `record` holds an encrypted value; False when it has not the form of one. What is in
        it is proved by the hash of the record alone: nobody without the run's key can say more.
        """
        for index in held.get("lists", ()):
            self.sealed_lists[index] = record
        if "blob" in held:
            self.sealed.setdefault((blob_key(held["blob"]), held["bytes"]), record)
            return True
        try:
            return base64.b64decode(held["sealed"], validate=True)[:1] == SEALED
        except (ValueError, TypeError):
            return False

    def name_lists(self, stored: Any) -> None:
        self.lists.update(dict.fromkeys(named_lists(stored)))

    async def check(self, store: Store) -> None:
        """Fetch and check what was named since the last call."""
        named = list(self.blobs.items())
        self.blobs.clear()
        for start in range(0, len(named), _AT_ONCE):
            some = named[start : start + _AT_ONCE]
            found = await asyncio.gather(*(optional(store, key) for (key, _, _), _ in some))
            for ((key, name, size), record), data in zip(some, found, strict=True):
                self._blob(key, data, name, size, record)
        while self.sealed:
            (key, size), record = self.sealed.popitem()
            await self._encrypted(store, key, size, f"a record in {record} names it")
        while self.lists or self.sealed_lists:
            if self.lists:
                (index, count, root, size), _ = self.lists.popitem()
                await self._list_at(store, index, (count, root, size))
            else:
                await self._list_at(store, self.sealed_lists.popitem()[0], None)

    def _blob(self, key: str, data: bytes | None, name: str, size: int, record: str) -> None:
        stored = self._content(key, data, size, f"a record in {record} names it")
        if stored is _NONE:
            return
        try:
            self.name_lists(stored)
            found = stored_hash(stored)
        except UNREADABLE as e:
            self.tell("BLOB", key, f"it holds no stored form of a value ({e})")
            return
        if found != name:
            self.tell("VALUE-HASH", key, f"it does not hold the value that a record in {record} names")

    async def _list_at(self, store: Store, index: str, named: tuple[int, str, int] | None) -> None:
        key = blob_key(index)
        try:
            if index not in self.checked:
                self.checked[index] = None
                await self._list(store, index)
            said = self.checked[index]
            if named is not None and said is not None and said != named:
                self.tell("LIST", key, "it is not the index of the list that names it")
        except UNREADABLE as e:
            self.tell("LIST", key, f"it, or a chunk of it, is of another form ({e})")

    async def _list(self, store: Store, index: str) -> None:
        key = blob_key(index)
        found = self._content(key, await optional(store, key), None, _BY_LIST)
        if found is _NONE:
            return
        count, root = found["count"], found["root"]
        self.checked[index] = (count, root, found["bytes"])
        if found.get("sealed") is True:
            for sha, length in found["chunks"]:
                await self._encrypted(store, blob_key(sha), length, _BY_LIST)
            for sha in found["far"]:
                await self._encrypted(store, blob_key(sha), None, _BY_LIST)
            self.sealed_lists.update(dict.fromkeys(found["lists"], index))
            return
        leaves: list[bytes] = []
        whole = True
        for sha, length in found["chunks"]:
            chunk = await self._chunk(store, blob_key(sha), length)
            whole = whole and chunk is not None
            leaves += chunk or []
        if whole and (len(leaves) != count or tree("list/v1", leaves).hex() != root):
            self.tell("LIST", key, "its chunks do not hold the items whose count and root it names")

    async def _chunk(self, store: Store, key: str, length: int) -> list[bytes] | None:
        """The hashes of its items, None when some are missing."""
        entries = self._content(key, await optional(store, key), length, _BY_LIST)
        if entries is _NONE:
            return None
        leaves: list[bytes] = []
        whole = True
        for entry in entries:
            if isinstance(entry, list):
                stored = entry[0]
            else:
                far = blob_key(entry["blob"])
                stored = self._content(far, await optional(store, far), entry["bytes"], _BY_LIST)
            if stored is _NONE:
                whole = False
                continue
            self.name_lists(stored)
            leaves.append(bytes.fromhex(stored_hash(stored)))
        return leaves if whole else None

    async def _encrypted(self, store: Store, key: str, length: int | None, by: str) -> None:
        size = self.sizes.get(key)
        if size is None:
            data = await optional(store, key)
            self.seen.add(key.rpartition("/")[2])
            size = self.sizes[key] = -1 if data is None else len(data)
            if data is None:
                self.tell("BLOB-MISSING", key, by)
                return
            if hashlib.sha256(data).hexdigest() != key.rpartition("/")[2]:
                self.tell("BLOB", key, _OTHER_BYTES)
                return
        if size >= 0 and length is not None and length != size:
            self.tell("BLOB", key, _OTHER_BYTES)

    def _content(self, key: str, data: bytes | None, length: int | None, by: str) -> Any:
        """What a blob holds; `_NONE`, and a finding, when it is missing or has other bytes."""
        self.seen.add(key.rpartition("/")[2])
        if data is None:
            self.tell("BLOB-MISSING", key, by)
        elif (length is not None and len(data) != length) or hashlib.sha256(data).hexdigest() != key.rpartition("/")[2]:
            self.tell("BLOB", key, _OTHER_BYTES)
        else:
            try:
                return orjson.loads(data)
            except ValueError:
                self.tell("BLOB", key, "it holds no JSON")
        return _NONE


_NONE: Any = object()
_BY_LIST = "a wide list names it"
