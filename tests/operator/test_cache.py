"""What is remembered of the cluster."""

import tracemalloc
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from decurion_crds.uses import uses
from decurion_operator.cache import Cache, trim
from decurion_operator.queue import Key


def raw(name: str = "x", *, version: str = "5", uid: str = "u", **more: Any) -> dict[str, Any]:
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": uid,
        "resourceVersion": version,
        "generation": 1,
        "creationTimestamp": "2026-12-01T10:00:00Z",
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:big": "x" * 5000}}}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 5000},
    }
    return {"metadata": meta | more.pop("metadata", {})} | more


def test_a_run_is_remembered_without_its_input_and_a_finished_one_in_a_kibibyte() -> None:
    spec = {"graph": "g", "input": {"text": "x" * 90_000}, "priority": 3}
    status = {
        "phase": "Succeeded",
        "finishedAt": "2026-12-01T10:00:00Z",
        "nodes": [{"name": "n"}] * 100,
        "output": "o" * 4000,
        "conditions": [{"type": t, "status": "True", "reason": "R", "message": ""} for t in "ABCD"],
    }
    kept = trim("TaskGraphRun", raw(spec=spec, status=status))
    assert dict(kept.spec) == {"graph": "g", "priority": 3}
    assert kept.spec_bytes > 90_000
    assert len(orjson.dumps([kept.spec, kept.status])) < 1024
    assert kept.finished


def test_ten_thousand_finished_runs_are_thirty_megabytes() -> None:
    """By a thousand of them, measured as Python allocates: whatever their inputs and outputs were."""

    def finished(number: int) -> dict[str, Any]:
        said = {"status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": "2026-12-01T10:00:00Z"}
        conditions = [said | {"type": kind} for kind in ("Completed", "Succeeded", "Reconciling", "Stalled")]
        status = {"phase": "Succeeded", "finishedAt": "2026-12-01T10:00:00Z", "graphDigest": "a" * 64}
        status |= {"conditions": conditions, "output": "o" * 4000}
        whole = raw(f"r{number}", uid=f"u{number}", spec={"graph": "g", "input": "x" * 9000}, status=status)
        # As from the wire: no text is shared with another object.
        return dict(orjson.loads(orjson.dumps(whole)))

    cache = Cache()
    tracemalloc.start()
    try:
        for number in range(1000):
            cache.put(trim("TaskGraphRun", finished(number)))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held / 1000 <= 3 * 1024


def test_a_spec_beyond_the_limit_is_not_kept_but_for_what_controls_a_run() -> None:
    big = {"graph": "g", "cancel": "Cancel", "overrides": {"llms": {"a": "x" * 100_000}}}
    assert dict(trim("TaskGraphRun", raw(spec=big)).spec) == {"graph": "g", "cancel": "Cancel"}
    assert dict(trim("TaskGraph", raw(spec={"nodes": ["x" * 100_000]})).spec) == {}


def test_of_a_secret_only_the_names_of_its_keys_are_kept() -> None:
    kept = trim("Secret", raw(data={"token": "c2VjcmV0"}))
    assert "c2VjcmV0" not in repr(kept)
    assert kept.spec["keys"] == ["token"]


def test_marks_of_gitops_tools_are_seen_in_labels_and_annotations() -> None:
    assert not trim("TaskGraphRun", raw()).managed
    assert trim("TaskGraphRun", raw(metadata={"labels": {"argocd.argoproj.io/instance": "a"}})).managed
    assert trim("TaskGraphRun", raw(metadata={"annotations": {"argocd.argoproj.io/tracking-id": "a"}})).managed
    assert trim("TaskGraphRun", raw(metadata={"labels": {"kustomize.toolkit.fluxcd.io/name": "a"}})).managed
    assert trim("TaskGraphRun", raw(metadata={"annotations": {"meta.helm.sh/release-name": "a"}})).managed
    assert trim("TaskGraphRun", raw(metadata={"labels": {"app.kubernetes.io/managed-by": "Helm"}})).managed
    assert not trim("TaskGraphRun", raw(metadata={"labels": {"app.kubernetes.io/managed-by": "kubectl"}})).managed


def test_the_echo_of_a_write_and_older_news_change_nothing() -> None:
    cache = Cache()
    assert cache.put(trim("LLM", raw(version="10")))
    assert not cache.put(trim("LLM", raw(version="10")))
    assert not cache.put(trim("LLM", raw(version="9")))
    assert cache.put(trim("LLM", raw(version="11")))
    assert cache.put(trim("LLM", raw(version="2")), certain=True)


def test_who_refers_to_an_object_is_found_also_before_it_exists() -> None:
    cache = Cache()
    node = {"name": "read", "llm": {"ref": "fast"}}
    cache.put(trim("TaskGraph", raw("g", spec={"nodes": [], "templates": [{"name": "t", "nodes": [node]}]})))
    cache.put(trim("TaskGraphRun", raw("r", uid="r", spec={"graph": "g", "overrides": {"llms": {"fast": "slow"}}})))
    assert [r.key.name for r in cache.referrers(Key("LLM", "ns", "fast"), "TaskGraph")] == ["g"]
    assert [r.key.name for r in cache.referrers(Key("LLM", "ns", "slow"), "TaskGraphRun")] == ["r"]
    assert [r.key.name for r in cache.referrers(Key("WorkerPool", "ns", "default"), "TaskGraphRun")] == ["r"]
    assert cache.referrers(Key("LLM", "other", "fast"), "TaskGraph") == []
    cache.put(trim("TaskGraph", raw("g", version="6", spec={"nodes": []})))
    assert cache.referrers(Key("LLM", "ns", "fast"), "TaskGraph") == []


def test_an_object_made_again_is_not_removed_by_the_end_of_the_first() -> None:
    cache = Cache()
    cache.put(trim("TaskGraphRun", raw("r", uid="second", version="9", spec={"graph": "g"})))
    assert cache.remove(Key("TaskGraphRun", "ns", "r"), uid="first") is None
    assert cache.by_uid("second") is not None
    assert cache.remove(Key("TaskGraphRun", "ns", "r"), uid="second") is not None
    assert cache.by_uid("second") is None


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["nodes", "templates", "llm", "ref", "name", "x"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["nodes", "templates"]), st.lists(anything, max_size=4)))
def test_references_are_read_from_whatever_stands_in_a_spec(spec: Any) -> None:
    assert all(isinstance(ref, str) for ref in uses(spec).llms)
