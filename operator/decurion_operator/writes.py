"""Writing status and events: only differences, at the pace allowed, always small enough.

What the API server stores comes back with the answer and goes into the cache at once, so the next look sees it and the
watch's echo of it is no news.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from decurion_crds.v1alpha1 import API_VERSION
from decurion_operator.cache import Cache, Resource, trim
from decurion_operator.conditions import JsonObject, cut, timestamp
from decurion_operator.errors import ClusterError, Conflict, NotFound, Refused, TooLarge
from decurion_operator.gateway import Gateway
from decurion_operator.pacing import Pacer
from decurion_operator.plan.run import Happening, is_phase_change
from decurion_operator.pruned import warned
from decurion_operator.queue import Key
from decurion_operator.status import bounded, patch_of, smallest

logger = logging.getLogger(__name__)

ROOMY_BYTES: Final = 1024 * 1024
"""Above this size of the whole object only the smallest status is written: the store's limit is 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the API server made of a status that it did not keep as it was written."""

    desired: Mapping[str, Any]
    stored: Mapping[str, Any] | None


class StatusStore(Protocol):
    """The part of the gateway that status goes through."""

    async def get(self, key: Key) -> JsonObject: ...

    async def patch_status(self, key: Key, *, version: str, patch: list[JsonObject]) -> JsonObject: ...


class StatusWriter:
    """Brings the status of objects to what planners want. `changed(key)` is called when a phase change was written, and
    when an object turned out to be another than was thought."""

    def __init__(
        self,
        gateway: StatusStore,
        cache: Cache,
        pacer: Pacer,
        *,
        changed: Callable[[Key], None],
        now: Callable[[], float],
    ) -> None:
        self._gateway = gateway
        self._cache = cache
        self._pacer = pacer
        self._changed = changed
        self._now = now
        self._kept: dict[Key, _Kept] = {}

    async def definition(self, resource: Resource, desired: JsonObject) -> None:
        """Write the status of an LLM or TaskGraph; these change seldom and wait for nothing."""
        await self._write(resource, self._warned(resource, desired))

    async def pool(self, resource: Resource, desired: JsonObject) -> float | None:
        """As `run`: counts of runs are progress, conditions are not."""
        return await self._paced(resource, self._warned(resource, desired), age=float("inf"))

    async def run(self, run: Resource, desired: JsonObject) -> float | None:
        """Write the status of a run if it differs and may be written now, else return the seconds to wait."""
        now = self._now()
        if not run.finished:
            desired = self._warned(run, desired)
            args: dict[str, Any] = {"live": run.status, "generation": run.generation, "now": now}
            desired = (smallest if run.object_bytes > ROOMY_BYTES else bounded)(desired, **args)
        return await self._paced(run, desired, age=max(0.0, now - run.created))

    def _warned(self, resource: Resource, desired: JsonObject) -> JsonObject:
        return warned(desired, resource.dropped, live=resource.status, generation=resource.generation, now=self._now())

    def forget(self, key: Key, uid: str) -> None:
        self._pacer.forget(uid)
        self._kept.pop(key, None)

    async def _paced(self, resource: Resource, desired: JsonObject, *, age: float) -> float | None:
        patch = self._difference(resource, desired)
        if not patch:
            return None
        now, size = asyncio.get_running_loop().time(), len(orjson.dumps(patch))
        phase = is_phase_change(resource.status, desired)
        if phase:
            wait = self._pacer.phase(resource.uid, now=now, size=size)
        else:
            # The cluster's store keeps a copy of the whole object for each write, until it is compacted: progress of a
            # run with a large input is shown more seldom.
            size = max(size, resource.object_bytes)
            wait = self._pacer.progress(resource.uid, now=now, size=size, age=age)
        if wait > 0:
            return wait
        await self._write(resource, desired)
        self._pacer.wrote(resource.uid, now=asyncio.get_running_loop().time())
        if phase:
            logger.info("%s %s/%s: %s", *resource.key, desired.get("reason") or "observed")
            self._changed(resource.key)
        return None

    async def _write(self, resource: Resource, desired: JsonObject) -> None:
        patch = self._difference(resource, desired)
        if not patch:
            return
        try:
            stored = await self._patch(resource, desired, patch)
        except NotFound:
            # Deleted meanwhile: the watch says so, or the next listing.
            return
        except Conflict:
            # Somebody else wrote first. Look at what there is now instead of at what the watch has not brought yet.
            await self._refresh(resource.key)
            return
        kept = trim(resource.key.kind, stored)
        self._cache.put(kept)
        if dict(kept.status or {}) != dict(desired) and not kept.finished:
            if resource.key not in self._kept:
                logger.warning(
                    "the API server does not keep the status of %s %s/%s as written: is its CRD of another version?",
                    *resource.key,
                )
            self._kept[resource.key] = _Kept(desired, kept.status)

    async def _patch(self, resource: Resource, desired: JsonObject, patch: list[JsonObject]) -> JsonObject:
        try:
            return await self._gateway.patch_status(resource.key, version=resource.version, patch=patch)
        except (TooLarge, Refused) as error:
            # Whatever it is about the detail, phase and conditions have to get through: others wait for them.
            logger.warning("%s: the smallest form is written", error)
            small = smallest(desired, live=resource.status, generation=resource.generation, now=self._now())
            return await self._gateway.patch_status(
                resource.key, version=resource.version, patch=patch_of(resource.status, small)
            )

    async def _refresh(self, key: Key) -> None:
        try:
            found = trim(key.kind, await self._gateway.get(key))
        except NotFound:
            return
        self._cache.put(found)
        self._changed(key)

    def _difference(self, resource: Resource, desired: JsonObject) -> list[JsonObject]:
        kept = self._kept.get(resource.key)
        if kept is not None and kept.desired == desired and kept.stored == resource.status:
            return []
        return patch_of(resource.status, desired)


class Recorder:
    """Events about runs: one for each run and reason, whatever happens how often and how often the operator starts."""

    def __init__(self, gateway: Gateway, *, now: Callable[[], float]) -> None:
        self._gateway = gateway
        self._now = now
        self._told: dict[str, set[str]] = {}

    async def tell(self, run: Resource, happening: Happening) -> None:
        """Create the event. A failure is logged and nothing else: an event is a courtesy."""
        told = self._told.setdefault(run.uid, set())
        if happening.reason in told:
            return
        told.add(happening.reason)
        try:
            await self._gateway.create_event(run.key, self._event(run, happening))
        except ClusterError as error:
            logger.warning("event %s of %s/%s was not written: %s", happening.reason, *run.key[1:], error)

    def forget(self, uid: str) -> None:
        self._told.pop(uid, None)

    def _event(self, run: Resource, happening: Happening) -> JsonObject:
        at = timestamp(self._now())
        name = f"{run.key.name[:180]}.{run.uid[:8]}.{happening.reason.lower()[:60]}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            # The name makes it one event for each reason: the second creation is refused, which is what is wanted.
            "metadata": {"name": name, "namespace": run.key.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": run.key.kind,
                "namespace": run.key.namespace,
                "name": run.key.name,
                "uid": run.uid,
            },
            "type": happening.kind,
            "reason": happening.reason,
            "message": cut(happening.message, 1024),
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "source": {"component": "decurion-operator"},
            "reportingComponent": "decurion.dev/operator",
            "reportingInstance": "decurion-operator",
        }
