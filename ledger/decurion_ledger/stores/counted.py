"""A store that counts what passes through it, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import AsyncIterator

from decurion_ledger.stores.port import ObjectInfo, Put, Range, Store


class Counted:
    """`store`, with the number of requests of each kind and the bytes that went either way.

    `puts` counts `put_new` and `put`, `gets` counts `get` and `head`; a request counts when it is sent.
    """

    def __init__(self, store: Store) -> None:
        self.uri = store.uri
        self.puts = 0
        self.gets = 0
        self.lists = 0
        self.deletes = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._store = store

    async def put_new(self, key: str, data: bytes) -> Put:
        self.puts += 1
        self.bytes_in += len(data)
        return await self._store.put_new(key, data)

    async def put(self, key: str, data: bytes) -> None:
        self.puts += 1
        self.bytes_in += len(data)
        await self._store.put(key, data)

    async def get(self, key: str, range: Range | None = None) -> bytes:
        self.gets += 1
        data = await self._store.get(key, range)
        self.bytes_out += len(data)
        return data

    async def head(self, key: str) -> ObjectInfo:
        self.gets += 1
        return await self._store.head(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        self.lists += 1
        return self._store.list(prefix, after)

    async def delete(self, key: str) -> None:
        self.deletes += 1
        await self._store.delete(key)

    async def aclose(self) -> None:
        await self._store.aclose()
