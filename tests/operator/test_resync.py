"""What the watch has missed is found by comparing with the cluster."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from decurion_operator.cache import Cache, Resource
from decurion_operator.errors import ClusterUnavailable
from decurion_operator.gateway import Gateway, Version
from decurion_operator.metrics import Meter
from decurion_operator.queue import Key
from decurion_operator.resync import Lister, Resync


class Seen:
    """A cache that only the comparison feeds, and what it was told."""

    def __init__(self, gateway: Lister, settings: Any) -> None:
        self.cache = Cache()
        self.told: list[tuple[str, str]] = []
        self.completed = 0
        self.resync = Resync(self.cache, gateway, settings, saw=self._saw, lost=self._lost, complete=self._complete)

    def _saw(self, resource: Resource) -> None:
        self.cache.put(resource, certain=True)
        self.told.append(("saw", resource.key.name))

    def _lost(self, key: Key, uid: str) -> None:
        self.cache.remove(key, uid=uid)
        self.told.append(("lost", key.name))

    def _complete(self) -> None:
        self.completed += 1


@pytest.fixture
async def gateway(settings: Any) -> AsyncIterator[Gateway]:
    made = await Gateway.connect(settings, Meter())
    yield made
    await made.aclose()


async def test_what_came_went_and_changed_unseen_is_told_and_nothing_else(
    cluster: Any, settings: Any, gateway: Gateway
) -> None:
    for name in ("kept", "edited", "deleted", "again"):
        await cluster.create("TaskGraphRun", name, {"graph": "g"})
    await cluster.create("Secret", "unlabelled", data={})
    await cluster.create("Secret", "labelled", data={}, metadata={"labels": {"decurion.dev/use": "true"}})
    seen = Seen(gateway, settings)
    await seen.resync.prime()
    assert sorted(seen.told) == [("saw", n) for n in ("again", "deleted", "edited", "kept", "labelled")]
    seen.told.clear()
    await seen.resync.compare()
    assert seen.told == []
    await cluster.patch("TaskGraphRun", "edited", {"spec": {"priority": 3}})
    for name in ("deleted", "again"):
        await cluster.delete("TaskGraphRun", name)
    await cluster.create("TaskGraphRun", "again", {"graph": "g"})
    await cluster.create("TaskGraphRun", "new", {"graph": "g"})
    await cluster.patch("Secret", "labelled", {"metadata": {"labels": {"decurion.dev/use": "false"}}})
    await seen.resync.compare()
    assert sorted(seen.told) == [
        ("lost", "again"),
        ("lost", "deleted"),
        ("lost", "labelled"),
        ("saw", "again"),
        ("saw", "edited"),
        ("saw", "new"),
    ]
    edited = seen.cache.get(Key("TaskGraphRun", cluster.namespace, "edited"))
    assert edited is not None
    assert edited.spec["priority"] == 3


class Broken:
    """Lists one of two runs, then breaks off: what a caller must not take for a whole list."""

    async def list_objects(self, kind: str, **scope: Any) -> AsyncIterator[dict[str, Any]]:
        if kind == "TaskGraphRun":
            for name in ("one", "two"):
                meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
                yield {"metadata": meta, "spec": {"graph": "g"}}

    async def list_versions(self, kind: str, **scope: Any) -> AsyncIterator[Version]:
        if kind == "TaskGraphRun":
            yield Version(Key(kind, "ns", "one"), "one", "1")
            raise ClusterUnavailable("The API server gave no answer: it will be asked again.")

    async def get(self, key: Key) -> dict[str, Any]:
        raise LookupError(key)


async def test_from_a_list_that_breaks_off_nothing_is_concluded(settings: Any) -> None:
    seen = Seen(Broken(), settings)
    await seen.resync.prime()
    seen.told.clear()
    with pytest.raises(ClusterUnavailable):
        await seen.resync.compare()
    assert seen.told == []
    assert seen.completed == 0
