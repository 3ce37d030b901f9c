"""Wide lists: how one becomes chunks under an index, and what is hashed of it.

    index   {"bytes", "chunks": [[sha256, bytes], …], "count", "root"}      one blob, canonical JSON
    chunk   [entry, …]                                                      512 items a blob, the last one fewer
    entry   [item]                    the item stands here
            {"blob": sha256, "bytes"} an item of more than 4 KiB has a blob of its own

Items are in stored form: a wide list inside one is `{"$list": {"bytes", "count", "index", "root"}}`, an object of the
author's own whose only key is `$list` is `{"$list": {"value": …}}`. The root is the Merkle root (domain `list/v1`)
over the items' value hashes: it is the same whoever built the list, in whatever pieces.

Of a list that is encrypted (see `sealing`), chunks and items are. Its index is not, so that what is needed can be found
without the key: it says `"sealed": true`, names the blobs of items (`far`) and the indexes of lists in them (`lists`),
and its root is over what the run's key makes of the items.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from decurion_crds.canonical import Json, canonical, merkle_root
from decurion_crds.wide import ListRef, mark, refs_in
from decurion_ledger.sealing import Seal

LIST_LIMIT = 64 * 1024
CHUNK = 512
INLINE_ITEM = 4 * 1024

FOLDED = "$list"


class ListBuilder:
    """Builds one wide list item by item. `blobs` (sha256 → bytes) holds what is finished and not yet stored: whoever
    builds takes them out and stores them, as often as memory asks for it.
    """

    def __init__(self, blobs: dict[str, bytes] | None = None, seal: Seal | None = None) -> None:
        self.blobs: dict[str, bytes] = {} if blobs is None else blobs
        self.seal = seal
        self._far: list[str] = []
        self._inner: set[str] = set()
        self._leaves: list[bytes] = []
        self._entries: list[bytes] = []
        self._chunks: list[tuple[str, int]] = []
        self._bytes = 1
        self._folded = 1

    @property
    def is_wide(self) -> bool:
        """Whether what was added is a wide list, and not one that stands where it is."""
        return self._folded > LIST_LIMIT

    def add(self, *, hash: bytes, stored: bytes, size: int, folded: int) -> None:
        """An item: its value hash (32 bytes), its stored form, and the bytes of its plain and of its folded form."""
        if len(stored) <= INLINE_ITEM:
            self._add(hash, b"[" + stored + b"]", size, folded)
        else:
            blob, length = self._blob(stored)
            self.add_blob(hash=hash, blob=blob, bytes=length, size=size, folded=folded)
        if self.seal is not None and b'"$list"' in stored:
            self._inner.update(ref.index for ref in refs_in(decode(stored)) if isinstance(ref, ListRef))

    def add_blob(self, *, hash: bytes, blob: str, bytes: int, size: int, folded: int) -> None:
        """An item whose stored form is a blob already."""
        if self.seal is not None:
            self._far.append(blob)
        self._add(hash, canonical({"blob": blob, "bytes": bytes}), size, folded)

    def _add(self, leaf: bytes, entry: bytes, size: int, folded: int) -> None:
        self._leaves.append(leaf)
        self._entries.append(entry)
        self._bytes += size + 1
        self._folded += folded + 1
        if len(self._entries) == CHUNK:
            self._flush()

    def _flush(self) -> None:
        raw = b"[" + b",".join(self._entries) + b"]"
        self._chunks.append(self._blob(raw))
        self._entries.clear()

    def _blob(self, raw: bytes) -> tuple[str, int]:
        """Name and bytes of a blob of items."""
        return self._put(raw if self.seal is None else self.seal.close(raw))

    def _put(self, raw: bytes) -> tuple[str, int]:
        sha = hashlib.sha256(raw).hexdigest()
        self.blobs[sha] = raw
        return sha, len(raw)

    def finish(self) -> ListRef:
        """The reference to what was added; index and last chunk are among `blobs`."""
        if self._entries:
            self._flush()
        count, root = len(self._leaves), merkle_root("list/v1", self._leaves)
        index: dict[str, Json] = {"bytes": self._bytes, "chunks": self._chunks, "count": count, "root": root}
        if self.seal is not None:
            index |= {"sealed": True, "far": self._far, "lists": sorted(self._inner)}
        return ListRef(count, self._bytes, root, self._put(canonical(index))[0])


def folded_ref(ref: ListRef) -> bytes:
    """What enters a value hash for a wide list."""
    return canonical({FOLDED: {"count": ref.count, "root": ref.root}})


def stored_ref(ref: ListRef) -> bytes:
    return canonical({FOLDED: {"bytes": ref.bytes, "count": ref.count, "index": ref.index, "root": ref.root}})


def decode(raw: bytes) -> Json:
    """The value of a stored form, with references for its wide lists."""
    value = orjson.loads(raw)
    return mark(unfolded(value)) if b'"$list"' in raw else value


def unfolded(stored: Any) -> Json:
    """A parsed stored form as a value, its containers not marked yet."""
    if isinstance(stored, list):
        return [unfolded(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    held = stored.get(FOLDED)
    if len(stored) == 1 and isinstance(held, dict):
        if "value" in held:
            return {FOLDED: unfolded(held["value"])}
        return ListRef(held["count"], held["bytes"], held["root"], held["index"])
    return {key: unfolded(member) for key, member in stored.items()}
