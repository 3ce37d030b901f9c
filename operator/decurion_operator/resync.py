"""Anti-entropy: what the watch has missed is found by listing names and versions.

The watch is fast, the listing is certain. An object that vanished while no watch stood is noticed only here, and a
driver is told which runs are live only after a listing that was complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

from decurion_operator.cache import Cache, Resource, trim
from decurion_operator.errors import ClusterError, NotFound
from decurion_operator.gateway import Version
from decurion_operator.queue import Backoff, Key
from decurion_operator.secret_use import USE_SELECTOR
from decurion_operator.settings import OperatorSettings

logger = logging.getLogger(__name__)

# References first, so that what refers to them finds them.
KINDS = ("Secret", "LLM", "MCPServer", "Agent", "WorkerPool", "TaskGraph", "TaskGraphRun", "Approval")


class Lister(Protocol):
    """The part of the gateway that lists and reads."""

    def list_objects(self, kind: str, *, namespace: str | None, label: str | None) -> AsyncIterator[dict[str, Any]]: ...

    def list_versions(self, kind: str, *, namespace: str | None, label: str | None) -> AsyncIterator[Version]: ...

    async def get(self, key: Key) -> dict[str, Any]: ...


class Resync:
    """`saw` takes an object as it is now, `lost` one that is gone, `complete` is called after each full comparison."""

    def __init__(
        self,
        cache: Cache,
        gateway: Lister,
        settings: OperatorSettings,
        *,
        saw: Callable[[Resource], None],
        lost: Callable[[Key, str], None],
        complete: Callable[[], None],
    ) -> None:
        self._cache = cache
        self._gateway = gateway
        self._settings = settings
        self._saw = saw
        self._lost = lost
        self._complete = complete

    async def prime(self) -> None:
        """Read everything once. Raises `ClusterError`."""
        for kind, namespace in self._scopes():
            async for raw in self._gateway.list_objects(kind, namespace=namespace, label=_label(kind)):
                self._saw(trim(kind, raw))

    async def run(self) -> None:
        """Compare for ever. A comparison that fails is logged, nothing is concluded from it, and it is repeated sooner:
        an API server that is busy answers lists late or not at all.
        """
        every = self._settings.resync_seconds
        backoff, failures = Backoff(base=min(2.0, every), cap=every), 0
        while True:
            await asyncio.sleep(backoff.delay(failures) if failures else every)
            try:
                await self.compare()
            except ClusterError as error:
                failures += 1
                logger.warning("the comparison with the cluster failed, nothing is concluded: %s", error)
                continue
            failures = 0
            self._complete()

    async def compare(self) -> None:
        """Bring the cache to what the cluster has. Raises `ClusterError` when that cannot be listed whole."""
        for kind in KINDS:
            before = {r.key: r for r in self._cache.all(kind)}
            there: dict[Key, Version] = {}
            for _, namespace in self._scopes(kind):
                async for found in self._gateway.list_versions(kind, namespace=namespace, label=_label(kind)):
                    there[found.key] = found
            for key, old in before.items():
                if key not in there or there[key].uid != old.uid:
                    self._lost(key, old.uid)
            for key, found in there.items():
                known = self._cache.get(key)
                # What the watch brought while the list was read is newer than the list.
                if known is None or (known is before.get(key) and known.version != found.version):
                    await self._read(key)

    async def _read(self, key: Key) -> None:
        try:
            raw = await self._gateway.get(key)
        except NotFound:
            return
        self._saw(trim(key.kind, raw))

    def _scopes(self, *kinds: str) -> Iterator[tuple[str, str | None]]:
        for kind in kinds or KINDS:
            for namespace in self._settings.namespaces or (None,):
                yield kind, namespace


def _label(kind: str) -> str | None:
    return USE_SELECTOR if kind == "Secret" else None
