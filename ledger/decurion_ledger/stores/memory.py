"""A store in the memory of this process: for tests, dry runs and benchmarks."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Callable

from decurion_ledger.errors import NotFound
from decurion_ledger.stores.port import ObjectInfo, Put, Range, check_key


class MemoryStore:
    """Objects in a dictionary. Two stores never share objects, whatever their names. `now` is the store's clock, in
    Unix seconds.
    """

    def __init__(self, name: str = "", *, now: Callable[[], float] = time.time) -> None:
        self.uri = f"memory://{name}"
        self._now = now
        self._modified: dict[str, float] = {}
        self._objects: dict[str, bytes] = {}
        self._keys: list[str] = []
        self._writes = 0
        self._etags: dict[str, str] = {}

    async def put_new(self, key: str, data: bytes) -> Put:
        check_key(key)
        if key in self._objects:
            return Put.EXISTS
        self._write(key, data)
        return Put.CREATED

    async def put(self, key: str, data: bytes) -> None:
        self._write(check_key(key), data)

    async def get(self, key: str, range: Range | None = None) -> bytes:
        data = self._found(key)
        return data if range is None else data[slice(*range)]

    async def head(self, key: str) -> ObjectInfo:
        return self._info(key, self._found(key))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        for key in self._keys[bisect_left(self._keys, max(prefix, after)) :]:
            if not key.startswith(prefix):
                return
            if key > after and key in self._objects:
                yield self._info(key, self._objects[key])

    async def delete(self, key: str) -> None:
        if self._objects.pop(check_key(key), None) is not None:
            self._keys.remove(key)
            del self._etags[key], self._modified[key]

    async def aclose(self) -> None:
        """Nothing to release; the objects stay readable."""

    def _write(self, key: str, data: bytes) -> None:
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = bytes(data)
        self._writes += 1
        self._etags[key] = str(self._writes)
        self._modified[key] = self._now()

    def _info(self, key: str, data: bytes) -> ObjectInfo:
        return ObjectInfo(key, len(data), self._etags[key], self._modified[key])

    def _found(self, key: str) -> bytes:
        data = self._objects.get(check_key(key))
        if data is None:
            raise NotFound(f"GET {self.uri}/{key}", "no such object")
        return data
