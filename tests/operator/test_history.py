"""How many ended runs of a graph are kept."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from decurion_operator.cache import Resource
from decurion_operator.conditions import timestamp
from decurion_operator.history import AT_ONCE
from decurion_operator.plan.history import KEPT, limits_of, surplus
from decurion_operator.queue import Key

NOW = 1_800_000_000.0


def ended(name: str, phase: str = "Succeeded", *, at: float = 0.0, **more: Any) -> Resource:
    fields: dict[str, Any] = {
        "key": Key("TaskGraphRun", "ns", name),
        "uid": f"uid-{name}",
        "version": "1",
        "generation": 1,
        "created": NOW,
        "deleting": False,
        "managed": False,
        "spec_bytes": 100,
        "object_bytes": 1000,
        "spec": {"graph": "g"},
        "status": {"phase": phase, "finishedAt": timestamp(NOW + at)},
    }
    return Resource(**fields | more)


def names(runs: list[Resource]) -> list[str]:
    return [run.key.name for run in runs]


def test_the_oldest_ends_go_first_and_each_limit_counts_its_own_phases() -> None:
    runs = [ended("b", at=2), ended("a", at=1), ended("c", at=3), ended("f", "Failed", at=0), ended("x", "Cancelled")]
    assert names(surplus(runs, {"succeeded": 1}, needed=frozenset())) == ["a", "b"]
    assert names(surplus(runs, {"failed": 1}, needed=frozenset())) == ["f"]
    assert names(surplus(runs, {"succeeded": 0, "failed": 0}, needed=frozenset())) == ["f", "x", "a", "b", "c"]
    assert surplus(runs, {}, needed=frozenset()) == []


def test_tracked_and_needed_runs_are_neither_deleted_nor_counted() -> None:
    runs = [ended("tracked", at=1, managed=True), ended("named", at=2), ended("old", at=3), ended("new", at=4)]
    assert names(surplus(runs, {"succeeded": 1}, needed=frozenset({"named"}))) == ["old"]
    assert names(surplus(runs, {"succeeded": 1}, needed=frozenset({"uid-named"}))) == ["old"]


def test_what_is_no_limit_is_none() -> None:
    assert limits_of({}) == {}
    assert limits_of({"history": {"succeeded": 3, "failed": None, "other": 1}}) == {"succeeded": 3}
    assert limits_of({"history": {"succeeded": True, "failed": -1}}) == {}


PHASES = ("Succeeded", "Failed", "Cancelled", "Running", "Queued", "Suspended")


@given(
    st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 50), st.booleans(), st.booleans(), st.booleans())),
    st.dictionaries(st.sampled_from(sorted(KEPT)), st.integers(0, 5)),
)
def test_what_is_left_is_within_the_limits_and_newer(rows: list[Any], limits: dict[str, int]) -> None:
    runs = [
        ended(f"r{n}", phase, at=at, managed=managed, deleting=deleting)
        for n, (phase, at, managed, deleting, _) in enumerate(rows)
    ]
    needed = frozenset(f"r{n}" for n, row in enumerate(rows) if row[-1])
    gone = surplus(runs, limits, needed=needed)
    assert not [run for run in gone if run.managed or run.deleting or not run.finished or run.key.name in needed]
    for name, most in limits.items():
        counted = [
            r for r in runs if r.phase in KEPT[name] and not r.managed and not r.deleting and r.key.name not in needed
        ]
        left = [run for run in counted if run not in gone]
        assert len(left) == min(most, len(counted))
        mine = [run for run in gone if run.phase in KEPT[name]]
        ends = [str((run.status or {})["finishedAt"]) for run in mine]
        assert ends == sorted(ends)
        assert not ends or all(str((run.status or {})["finishedAt"]) >= ends[-1] for run in left)


async def runs_of(cluster: Any) -> list[str]:
    found = await cluster.call("GET", cluster.path("TaskGraphRun"))
    return sorted(item["metadata"]["name"] for item in found["items"])


async def test_a_cluster_keeps_as_many_runs_as_the_graph_says(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    """More than are deleted at once, by an operator that finds them ended; then as runs end; then as others let go."""

    async def left(*wanted: str) -> None:
        async def there() -> bool:
            return await runs_of(cluster) == sorted(wanted)

        await until(there, what=f"runs {wanted}, not {await runs_of(cluster)}", seconds=60)

    await cluster.set_up(pool)
    mark = {"annotations": {"argocd.argoproj.io/tracking-id": "app:decurion.dev/TaskGraphRun:ns/tracked"}}
    for n in range(AT_ONCE + 5):
        name = f"old-{n:02d}"
        await ended_run(cluster, name, at=n)
    await ended_run(cluster, "tracked", at=0, metadata=mark)
    await ended_run(cluster, "broken", "Failed", at=0)
    async with operate():
        await cluster.start("fork", forkFrom={"run": "old-01", "path": "/double"})
        await cluster.until_status("TaskGraphRun", "fork", phase="Running")
        await cluster.patch("TaskGraph", "double", {"spec": {"history": {"succeeded": 2}}})
        last = [f"old-{n:02d}" for n in (1, AT_ONCE + 3, AT_ONCE + 4)]
        await left(*last, "tracked", "broken", "fork")

        await pool.finish("fork", output={"n": 42})
        await cluster.until_status("TaskGraphRun", "fork", phase="Succeeded")
        await left(last[-1], "tracked", "broken", "fork")

        await cluster.patch("TaskGraph", "double", {"spec": {"history": {"succeeded": None, "failed": 0}}})
        await left(last[-1], "tracked", "fork")


async def ended_run(cluster: Any, name: str, phase: str = "Succeeded", *, at: float, **more: Any) -> None:
    """A run as an operator of yesterday left it."""
    await cluster.create("TaskGraphRun", name, {"graph": "double", "input": {"n": 1}}, **more)
    path = f"{cluster.path('TaskGraphRun', name)}/status"
    status = {"phase": phase, "reason": phase, "finishedAt": timestamp(NOW - 1e8 + at)}
    await cluster.call("PATCH", path, {"status": status}, kind="application/merge-patch+json")
