"""The objects of a run's workspaces in a store: read by name out of packs, written in packs of what comes together."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

import orjson

from decurion_crds.canonical import canonical
from decurion_ledger.errors import BlobCorrupt, NotFound
from decurion_ledger.layout import pack_key
from decurion_ledger.patience import REPEATED_WHEN_OPEN, Clock, Patience, SystemClock, patiently
from decurion_ledger.stores.port import Store
from decurion_ledger.workspace.cache import Cache, fits
from decurion_ledger.workspace.pack import (
    Blob,
    ObjectKind,
    Place,
    index_length,
    make_pack,
    read_index,
    unframed,
)
from decurion_ledger.workspace.tree import EMPTY_ROOT, EMPTY_TREE, Entry, Tree, decode_tree, folder_entry
from decurion_ledger.workspace.version import Version

CHUNK = 4 * 1024 * 1024
"""Bytes of a part of a large file."""
LARGE = 8 * 1024 * 1024
"""Bytes from which a file is kept in chunks."""
PACK_BYTES = 16 * 1024 * 1024
"""Bytes of objects that are gathered into one pack."""
_TAIL = 256 * 1024
_GAP = 64 * 1024
_SPAN = 8 * 1024 * 1024
_AT_ONCE = 16
_NEAR = 64 * 1024 * 1024
_TREES = 4096
_UNPACKED = 256
"""Inline packs that are unpacked at a time, in a thread: those of thousands of arms would keep a loop from turning."""


class Objects:
    """Objects of one run in one store, as one process sees them.

    A version is made known by `learn` before what it names is read. Reading and writing repeat for as long as
    `patience` says. While one pack is being written, what comes meanwhile gathers for the next: so a runner writes few
    packs, however many branches it runs. `near` is how many bytes of objects are kept in memory.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        cache: Cache | None = None,
        patience: Patience | None = None,
        clock: Clock | None = None,
        near: int = _NEAR,
    ) -> None:
        self.run = run
        self._store = store
        self.cache = cache
        self._patience = patience or Patience()
        self._clock = clock or SystemClock()
        self._places: dict[str, Place] = {}
        self._packs: set[str] = set()
        self._near: OrderedDict[str, Blob] = OrderedDict()
        self._near_limit = near
        self._near_bytes = 0
        self._trees: OrderedDict[str, Tree] = OrderedDict()
        self._waiting: list[tuple[list[Blob], asyncio.Future[tuple[str, ...]]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._hold(Blob(EMPTY_ROOT, "tree", EMPTY_TREE))

    def apart(self, *, near: int) -> Objects:
        """Objects of the same run with a memory of their own, for work that is over soon."""
        return Objects(self._store, self.run, cache=self.cache, patience=self._patience, clock=self._clock, near=near)

    # ------------------------------------------------------------------ where things are

    async def learn(self, *versions: Version) -> None:
        """Find out where the objects of these versions are. Raises `BlobCorrupt` or the store's error."""
        inline = list(dict.fromkeys(version.inline for version in versions if version.inline))
        for start in range(0, len(inline), _UNPACKED):
            for blob in await asyncio.to_thread(_unpacked, inline[start : start + _UNPACKED]):
                self._hold(blob)
        unknown = sorted({pack for version in versions for pack in version.packs} - self._packs)
        for start in range(0, len(unknown), _AT_ONCE):
            await asyncio.gather(*map(self._open, unknown[start : start + _AT_ONCE]))

    async def _open(self, pack: str) -> None:
        key = pack_key(self.run, pack)
        tail = await self._get(pack, (-_TAIL, None))
        length = index_length(tail, key)
        if length > len(tail):
            tail = await self._get(pack, (-length, None))
        index = read_index(pack, tail, key)
        own = sum(place.length for place in index.values() if place.pack == pack)
        for name, place in index.items():
            self._places.setdefault(name, place)
            if own + length == len(tail) and place.pack == pack:
                frame = tail[place.offset : place.offset + place.length]
                blob = self._checked(name, place, frame)
                self._hold(blob)
                if self.cache is not None:
                    self.cache.put(*blob)
        self._packs.add(pack)

    def place(self, name: str) -> Place | None:
        return self._places.get(name)

    def at_hand(self, name: str) -> Blob | None:
        """An object in memory that is in no pack."""
        return None if name in self._places else self._near.get(name)

    def kind(self, name: str) -> ObjectKind:
        """Raises `BlobCorrupt` for an object that no version named."""
        place = self._places.get(name)
        if place is not None:
            return place.kind
        blob = self._near.get(name)
        if blob is None:
            raise _unknown(name)
        return blob.kind

    # ------------------------------------------------------------------ reading

    async def fetch(self, names: Iterable[str]) -> dict[str, bytes]:
        """The bytes of objects. Raises `BlobCorrupt` or the store's error."""
        found: dict[str, bytes] = {}
        far: dict[str, list[tuple[str, Place]]] = defaultdict(list)
        for name in dict.fromkeys(names):
            held = self._held(name)
            if held is not None:
                found[name] = held
                continue
            place = self._places.get(name)
            if place is None:
                raise _unknown(name)
            far[place.pack].append((name, place))
        spans = [(pack, span) for pack, wanted in sorted(far.items()) for span in _spans(wanted)]
        for start in range(0, len(spans), _AT_ONCE):
            got = await asyncio.gather(*(self._span(pack, span) for pack, span in spans[start : start + _AT_ONCE]))
            for blobs in got:
                found.update((blob.name, blob.raw) for blob in blobs)
        return found

    def _held(self, name: str) -> bytes | None:
        blob = self._near.get(name)
        if blob is not None:
            self._near.move_to_end(name)
            return blob.raw
        place = self._places.get(name)
        if place is None or self.cache is None:
            return None
        raw = self.cache.get(name, place.kind)
        if raw is not None:
            self._hold(Blob(name, place.kind, raw))
        return raw

    async def _span(self, pack: str, span: Sequence[tuple[str, Place]]) -> list[Blob]:
        start = span[0][1].offset
        end = max(place.offset + place.length for _, place in span)
        raw = await self._get(pack, (start, end))
        blobs = []
        for name, place in span:
            blob = self._checked(name, place, raw[place.offset - start : place.offset - start + place.length])
            self._hold(blob)
            if self.cache is not None:
                self.cache.put(*blob)
            blobs.append(blob)
        return blobs

    def _checked(self, name: str, place: Place, frame: bytes) -> Blob:
        where = pack_key(self.run, place.pack)
        raw = unframed(frame, place, where)
        if not fits(name, place.kind, raw):
            raise BlobCorrupt(where, f"the object {name} in it does not have its hash")
        return Blob(name, place.kind, raw)

    async def folders(self, entries: Iterable[Entry]) -> dict[str, Tree]:
        """The folders of these entries by their hash. Raises `BadTree`, and `BlobCorrupt`, also for one that does not
        hold as much as its entry says.
        """
        wanted = {entry.ref: entry for entry in entries}
        found = await self.trees(wanted)
        for ref, tree in found.items():
            if folder_entry(tree, ref) != wanted[ref]:
                raise BlobCorrupt(f"folder {ref}", "it does not hold as many files and bytes as is said of it")
        return found

    async def trees(self, refs: Iterable[str]) -> dict[str, Tree]:
        """The folders of these names. Raises `BlobCorrupt` and `BadTree`."""
        found: dict[str, Tree] = {}
        far: list[str] = []
        for ref in dict.fromkeys(refs):
            tree = self._trees.get(ref)
            if tree is None:
                far.append(ref)
            else:
                found[ref] = tree
        for ref, raw in (await self.fetch(far)).items():
            tree = found[ref] = self._trees[ref] = decode_tree(raw, f"folder {ref}")
            if len(self._trees) > _TREES:
                self._trees.popitem(last=False)
        return found

    def check_sizes(self, entries: Iterable[Entry]) -> None:
        """That files which are kept whole are as large as their folders say: by that they are counted. Raises
        `BlobCorrupt` before anything of them is read.
        """
        for entry in entries:
            kind, size = self.kind(entry.ref), self._size(entry.ref)
            if kind != "file" or size != entry.size:
                raise _other_size(entry)

    def _size(self, name: str) -> int:
        place = self._places.get(name)
        return len(self._near[name].raw) if place is None else place.size

    async def content(self, entry: Entry) -> AsyncIterator[bytes]:
        """The content of a file, piece by piece. Raises `BlobCorrupt`, after the last piece when the whole does not
        have its hash, or the store's error.
        """
        if self.kind(entry.ref) != "chunks":
            self.check_sizes([entry])
            yield (await self.fetch([entry.ref]))[entry.ref]
            return
        chunks = await self.chunks_of(entry.ref)
        if sum(size for _, size in chunks) != entry.size:
            raise _other_size(entry)
        whole = hashlib.sha256()
        for name, size in chunks:
            if self.kind(name) != "file" or self._size(name) != size:
                raise BlobCorrupt(f"file {entry.ref}", "its chunks do not have the sizes in its list of them")
            raw = (await self.fetch([name]))[name]
            whole.update(raw)
            yield raw
        if whole.hexdigest() != entry.ref:
            raise BlobCorrupt(f"file {entry.ref}", "its chunks are not those of a file of this hash")

    async def read(self, entry: Entry) -> bytes:
        """The content of a file, or the target of a link."""
        if entry.kind == "link":
            return entry.ref.encode()
        return b"".join([piece async for piece in self.content(entry)])

    async def chunks_of(self, name: str) -> list[tuple[str, int]]:
        """Name and size of the chunks of a large file. Raises `BlobCorrupt`."""
        raw = (await self.fetch([name]))[name]
        try:
            chunks = [(str(chunk), int(size)) for chunk, size in orjson.loads(raw)["chunks"]]
            if any(size < 0 for _, size in chunks):
                raise ValueError("a size is below 0")
            return chunks
        except (ValueError, KeyError, TypeError) as e:
            raise BlobCorrupt(f"file {name}", f"its list of chunks cannot be read ({e})") from e

    # ------------------------------------------------------------------ writing

    async def write(self, blobs: list[Blob]) -> tuple[str, ...]:
        """Store objects; the packs that they are in."""
        waiter: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.append((blobs, waiter))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())
        return await waiter

    async def _write_all(self) -> None:
        # One turn of the loop first: branches that end together come together.
        await asyncio.sleep(0)
        while self._waiting:
            group = self._next_group()
            try:
                pack = await self.write_pack({blob.name: blob for blobs, _ in group for blob in blobs}.values())
            except BaseException as failure:
                for _, waiter in group:
                    if not waiter.done():
                        waiter.set_exception(failure if isinstance(failure, Exception) else asyncio.CancelledError())
                if not isinstance(failure, Exception):
                    self._writing = None
                    raise
                continue
            for _, waiter in group:
                if not waiter.done():
                    waiter.set_result((pack,))
        self._writing = None

    def _next_group(self) -> list[tuple[list[Blob], asyncio.Future[tuple[str, ...]]]]:
        group: list[tuple[list[Blob], asyncio.Future[tuple[str, ...]]]] = []
        size = 0
        while self._waiting and (not group or size < PACK_BYTES):
            one = self._waiting.pop(0)
            size += sum(len(blob.raw) for blob in one[0])
            group.append(one)
        return group

    async def write_pack(self, blobs: Iterable[Blob], elsewhere: Mapping[str, Place] | None = None) -> str:
        """Store a pack; its name."""
        held = list(blobs)
        pack, raw = await asyncio.to_thread(make_pack, held, elsewhere)
        key = pack_key(self.run, pack)
        await patiently(
            lambda: self._store.put_new(key, raw),
            patience=self._patience,
            clock=self._clock,
            repeated=REPEATED_WHEN_OPEN,
        )
        index = read_index(pack, raw, key)
        for name, place in index.items():
            self._places.setdefault(name, place)
        for blob in held:
            self._hold(blob)
        self._packs.add(pack)
        return pack

    def hold(self, blobs: Iterable[Blob]) -> None:
        """Keep objects at hand that are in no pack."""
        for blob in blobs:
            self._hold(blob)

    # ------------------------------------------------------------------ memory

    def _hold(self, blob: Blob) -> None:
        if blob.name in self._near:
            self._near.move_to_end(blob.name)
            return
        self._near[blob.name] = blob
        self._near_bytes += len(blob.raw)
        while self._near_bytes > self._near_limit and len(self._near) > 1:
            _, gone = self._near.popitem(last=False)
            self._near_bytes -= len(gone.raw)
            if gone.name == EMPTY_ROOT:
                self._near[EMPTY_ROOT] = gone
                self._near_bytes += len(gone.raw)

    async def _get(self, pack: str, span: tuple[int, int | None]) -> bytes:
        key = pack_key(self.run, pack)
        try:
            return await patiently(lambda: self._store.get(key, span), patience=self._patience, clock=self._clock)
        except NotFound as e:
            raise BlobCorrupt(key, "the pack is missing") from e


def inline_blobs(inline: bytes) -> list[Blob]:
    """The objects that stand in a version itself. Raises `BlobCorrupt`."""
    found = []
    for name, place in read_index("", inline, "a record's workspace").items():
        raw = unframed(inline[place.offset : place.offset + place.length], place, "a record's workspace")
        if not fits(name, place.kind, raw):
            raise BlobCorrupt("a record's workspace", f"the object {name} in it does not have its hash")
        found.append(Blob(name, place.kind, raw))
    return found


def _unpacked(inline: Iterable[bytes]) -> list[Blob]:
    return [blob for one in inline for blob in inline_blobs(one)]


def chunk_list(name: str, chunks: Sequence[tuple[str, int]]) -> Blob:
    """The object that says which chunks the file `name` has."""
    return Blob(name, "chunks", canonical({"chunks": [list(chunk) for chunk in chunks]}))


def _spans(wanted: list[tuple[str, Place]]) -> list[list[tuple[str, Place]]]:
    """What is near to one another in a pack is fetched by one request."""
    spans: list[list[tuple[str, Place]]] = []
    end = 0
    for one in sorted(wanted, key=lambda pair: pair[1].offset):
        place = one[1]
        begins = spans and place.offset - end <= _GAP and place.offset + place.length - spans[-1][0][1].offset <= _SPAN
        if begins:
            spans[-1].append(one)
        else:
            spans.append([one])
        end = max(end, place.offset + place.length) if begins else place.offset + place.length
    return spans


def _other_size(entry: Entry) -> BlobCorrupt:
    return BlobCorrupt(f"file {entry.ref}", f"it does not have the {entry.size} bytes that are said of it")


def _unknown(name: str) -> BlobCorrupt:
    return BlobCorrupt(f"object {name}", "no pack of the workspace holds it")
