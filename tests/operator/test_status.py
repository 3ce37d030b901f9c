"""From any projection to a status that can be written."""

from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decurion_crds.structural import crd_manifests
from decurion_operator.conditions import Condition, cut, find, merge, seconds_of, timestamp
from decurion_operator.status import (
    HARD_BYTES,
    PROJECTED,
    SOFT_BYTES,
    bounded,
    patch_of,
    progress_fields,
    smallest,
)

NOW = 1_800_000_000.0


def status_schema(kind: str) -> dict[str, Any]:
    crd = next(crd for crd in crd_manifests() if crd["spec"]["names"]["kind"] == kind)
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    return found


RUN_STATUS = jsonschema_rs.validator_for(status_schema("TaskGraphRun"))
NAMES = frozenset(status_schema("TaskGraphRun")["properties"])

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
odd_text = st.text(max_size=20) | st.builds(
    lambda char, count: char * count, st.sampled_from('aé漢😀\x00\\"'), st.sampled_from([0, 60, 257, 1025, 70_000])
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "name": st.from_regex(r"^[a-z][a-zA-Z0-9_]{0,62}\Z") | json_values,
        "kind": st.sampled_from(["llm", "map", "code"]) | json_values,
        "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Skipped"]) | json_values,
        "total": st.integers() | json_values,
        "failed": st.integers(0, 10**6),
        "path": odd_text,
        "class": odd_text,
        "message": odd_text,
    },
)


def many(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Short lists and very long ones, without drawing each item of these."""
    return st.builds(lambda some, times: some * times, st.lists(items, max_size=4), st.sampled_from([1, 100]))


projections = st.fixed_dictionaries(
    {},
    optional={
        "attempt": st.integers() | json_values,
        "startedAt": st.datetimes().map(lambda d: d.isoformat() + "Z") | st.text(max_size=30),
        "finishedAt": st.just("2026-12-01T10:00:00.123456+02:00") | json_values,
        "progress": st.just("3/24") | odd_text,
        "usage": st.dictionaries(st.sampled_from(["calls", "inputTokens", "other"]), st.integers()) | json_values,
        "limits": st.dictionaries(st.sampled_from(["tokens", "costUSD", "seconds", "other"]), json_values)
        | json_values,
        "nodes": many(rows) | json_values,
        "failures": many(rows) | json_values,
        "ledger": st.fixed_dictionaries({"uri": odd_text, "slot": st.integers(), "head": odd_text}) | json_values,
        "stateHash": st.just("ab" * 32) | odd_text,
        "output": json_values | odd_text,
        "unknown": json_values,
    },
)


def whole(projection: Any, *, message: str = "m") -> dict[str, Any]:
    conditions = [
        Condition("Completed", "True", "Failed", message),
        Condition("Succeeded", "False", "Failed", message),
        Condition("Reconciling", "False", "Failed", message),
        Condition("Stalled", "True", "Failed", message),
    ]
    return progress_fields(projection) | {
        "observedGeneration": 3,
        "phase": "Failed",
        "reason": "Failed",
        "message": cut(message, 1024),
        "graphDigest": "ab" * 32,
        "conditions": merge([], conditions, generation=3, now=NOW),
    }


@settings(max_examples=60)
@given(projections | json_values.filter(lambda v: isinstance(v, dict)))
def test_any_projection_gives_a_status_that_the_schema_allows(projection: Any) -> None:
    status = bounded(whole(projection), live=None, generation=3, now=NOW)
    RUN_STATUS.validate(status)
    assert set(status) <= NAMES
    for node in status.get("nodes", []):
        assert set(node) <= {"name", "kind", "phase", "total", "running", "succeeded", "failed", "skipped"}


@settings(max_examples=60)
@given(projections, odd_text, st.lists(odd_text, max_size=3).map(lambda some: some * 4))
def test_any_projection_fits_and_its_smallest_form_is_small(projection: Any, message: str, foreign: list[str]) -> None:
    status = whole(projection, message=message)
    # Conditions that somebody else has put there, as large as the schema lets them be.
    status["conditions"] += [
        {"type": f"Other{n}", "status": "True", "reason": "R", "message": text[:32768], "lastTransitionTime": "t"}
        for n, text in enumerate(foreign)
    ]
    fitted = bounded(status, live=None, generation=3, now=NOW)
    assert len(orjson.dumps(fitted)) <= HARD_BYTES
    assert len(orjson.dumps(smallest(status, live=None, generation=3, now=NOW))) <= 8 * 1024
    assert fitted["phase"] == "Failed"
    assert {c["type"] for c in fitted["conditions"]} >= {"Completed", "Succeeded", "Reconciling", "Stalled"}


def test_what_a_run_used_stands_beside_what_it_may_use() -> None:
    projection = {
        "usage": {"calls": 3, "inputTokens": 40, "outputTokens": 2, "toolCalls": 1, "costUSD": "0.0000249"},
        "limits": {"tokens": 1000, "costUSD": "0.5", "steps": 50, "toolCalls": 4, "seconds": 59.5},
    }
    found = progress_fields(projection)
    assert {name: found[name] for name in projection} == projection
    assert not list(RUN_STATUS.iter_errors(found))
    odd = {"tokens": -1, "costUSD": "1e3", "seconds": True, "more": 1}
    assert progress_fields({"usage": {**odd, "seconds": 3}, "limits": odd}) == {}


def test_a_usual_wide_graph_stays_below_the_soft_bound_with_all_its_nodes() -> None:
    nodes = [
        {"name": f"node_with_a_long_name_{n:09}", "kind": "transform", "phase": "Succeeded", "total": 10**6}
        | dict.fromkeys(("running", "succeeded", "failed", "skipped"), 10**5)
        for n in range(128)
    ]
    failures = [{"path": "/extract[00017]/read", "class": "Transient", "message": "x" * 5000}] * 40
    status = bounded(
        whole({"nodes": nodes, "failures": failures, "output": "o" * 4000}), live=None, generation=3, now=NOW
    )
    assert len(orjson.dumps(status)) <= SOFT_BYTES
    assert len(status["nodes"]) == 128
    assert len(status["failures"]) == 10
    assert find(status, "StatusTruncated") is None


def test_what_is_left_out_is_said_and_no_longer_said_when_it_fits_again() -> None:
    nodes = [{"name": "n" * 63, "phase": "Running"} | dict.fromkeys(("total", "running", "succeeded"), 2**53 - 1)] * 128
    big = {
        "nodes": nodes,
        "output": "o" * 4000,
        "failures": [{"path": "p" * 500, "class": "C", "message": "m" * 300}] * 10,
    }
    cut_down = bounded(whole(big), live=None, generation=3, now=NOW)
    truncated = find(cut_down, "StatusTruncated")
    assert truncated is not None
    assert truncated["status"] == "True"
    again = bounded(whole(big), live=cut_down, generation=3, now=NOW + 60)
    assert again == cut_down, "a status that stays too large is not written again and again"
    healed = find(bounded(whole({}), live=cut_down, generation=3, now=NOW + 60), "StatusTruncated")
    assert healed is not None
    assert healed["status"] == "False"


@given(projections)
def test_every_field_that_a_projection_decides_is_named(projection: Any) -> None:
    assert set(progress_fields(projection)) <= set(PROJECTED)


def test_no_text_of_a_model_moves_the_cursor_of_a_terminal() -> None:
    assert cut("a\x1b[2J\x07b\nc", 100) == "a?[2J?b\nc"


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=200), st.integers(3, 100))
def test_a_cut_text_has_at_most_the_bytes_and_is_writable(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert len(short.encode()) <= limit
    orjson.dumps(short)


def test_a_patch_turns_the_live_status_into_the_desired_one() -> None:
    live = {"phase": "Running", "progress": "1/2", "failures": [1], "message": "old"}
    desired = {"phase": "Succeeded", "progress": "1/2", "output": {"a": None}}
    applied = dict(live)
    for step in patch_of(live, desired):
        name = step["path"].removeprefix("/status/")
        if step["op"] == "remove":
            del applied[name]
        else:
            applied[name] = step["value"]
    assert applied == desired
    assert patch_of(desired, desired) == []
    assert patch_of(None, desired) == [{"op": "add", "path": "/status", "value": desired}]


def test_a_transition_time_moves_only_with_the_status() -> None:
    first = merge([], [Condition("Ready", "False", "A", "a")], generation=1, now=NOW)
    same = merge(first, [Condition("Ready", "False", "B", "b")], generation=2, now=NOW + 60)
    other = merge(same, [Condition("Ready", "True", "C")], generation=2, now=NOW + 120)
    assert same[0]["lastTransitionTime"] == timestamp(NOW)
    assert same[0]["reason"] == "B"
    assert same[0]["observedGeneration"] == 2
    assert other[0]["lastTransitionTime"] == timestamp(NOW + 120)


def test_conditions_of_others_are_kept() -> None:
    theirs = {"type": "Theirs", "status": "True", "reason": "R", "message": "", "lastTransitionTime": timestamp(NOW)}
    assert merge([theirs], [Condition("Ready", "True", "R")], generation=1, now=NOW)[1] == theirs


@pytest.mark.parametrize("text", ["2026-12-01T10:00:00Z", "2026-12-01T11:00:00.5+01:00"])
def test_times_are_read_and_written_to_the_second(text: str) -> None:
    assert timestamp(seconds_of(text) or 0) == "2026-12-01T10:00:00Z"


@given(st.text(max_size=40) | json_values)
def test_what_is_no_time_is_none(value: Any) -> None:
    seconds = seconds_of(value)
    assert seconds is None or timestamp(seconds)
