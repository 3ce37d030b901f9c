"""The planner of runs, from facts alone."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decurion_operator.cache import Resource
from decurion_operator.conditions import find, is_true
from decurion_operator.plan.definitions import Verdict
from decurion_operator.plan.pool import Place
from decurion_operator.plan.run import Action, Closure, PoolFacts, RunFacts, Trouble, is_phase_change, plan_run
from decurion_operator.queue import Key

NOW = 1_800_000_000.0
DIGEST = "ab" * 32
READY = Verdict(True, "Ready", "")
UP = PoolFacts(True, True)
DOWN = PoolFacts(True, False, "The pool gave no answer.", silent=1e9)
PROJECTION = {"phase": "Running", "progress": "1/3", "attempt": 1, "startedAt": "2026-12-01T10:00:00Z"}
ENDED = PROJECTION | {"phase": "Succeeded", "output": {"n": 1}, "finishedAt": "2026-12-01T10:00:09Z"}


def run(status: dict[str, Any] | None = None, *, generation: int = 1, **more: Any) -> Resource:
    spec = {"graph": "g"} | more.pop("spec", {})
    fields: dict[str, Any] = {
        "key": Key("TaskGraphRun", "ns", "r"),
        "uid": "u",
        "version": "1",
        "generation": generation,
        "created": NOW - 100,
        "deleting": False,
        "managed": False,
        "spec_bytes": 100,
        "object_bytes": 1000,
        "spec": spec,
        "status": status,
    }
    return Resource(**fields | more)


def facts(of: Resource, **more: Any) -> RunFacts:
    usual: dict[str, Any] = {"closure": Closure(READY, DIGEST, stored=True), "pool": UP, "listed": False}
    return RunFacts(run=of, now=NOW, **usual | more)


def queued(**more: Any) -> Resource:
    return run(
        {"phase": "Queued", "reason": "Queued", "graphDigest": DIGEST, "queuedAt": "2026-12-01T09:00:00Z"}, **more
    )


def running(**more: Any) -> Resource:
    return run({"phase": "Running", "reason": "Running", "graphDigest": DIGEST, "conditions": []}, **more)


def ended(**more: Any) -> Resource:
    status = {
        "phase": "Succeeded",
        "observedGeneration": 1,
        "finishedAt": "2027-01-15T07:59:50Z",
        "conditions": [
            {
                "type": "Succeeded",
                "status": "True",
                "reason": "Succeeded",
                "lastTransitionTime": "t",
                "observedGeneration": 1,
            }
        ],
    }
    return run(status, **more)


def test_a_closure_is_stored_at_the_pool_before_anything_is_shown() -> None:
    plan = plan_run(facts(run(), closure=Closure(READY, DIGEST, stored=False)))
    assert plan.status is None
    assert plan.actions == (Action.STORE_BUNDLE,)


def test_queued_is_shown_in_the_write_that_records_the_digest() -> None:
    plan = plan_run(facts(run()))
    assert plan.status is not None
    assert (plan.status["phase"], plan.status["graphDigest"]) == ("Queued", DIGEST)
    assert plan.actions == ()


def test_a_pinned_run_is_opened_whatever_the_graph_says_now() -> None:
    broken = Closure(Verdict(False, "CompileFailed", "…"))
    for closure in (None, broken, Closure(READY, "cd" * 32, stored=False)):
        plan = plan_run(facts(queued(), closure=closure, place=Place(0, 1)))
        assert plan.actions == (Action.OPEN,)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"closure": Closure(Verdict(False, "CompileFailed", "cycle"))}, "GraphNotReady"),
        ({"pool": PoolFacts(False)}, "PoolUnavailable"),
        ({"pool": DOWN, "closure": Closure(READY, DIGEST)}, "PoolUnavailable"),
        (
            {
                "closure": Closure(READY, DIGEST),
                "trouble": {Action.STORE_BUNDLE: Trouble("StoreUnavailable", "no store")},
            },
            "StoreUnavailable",
        ),
    ],
)
def test_a_run_that_cannot_be_pinned_is_pending_and_says_why(more: dict[str, Any], reason: str) -> None:
    plan = plan_run(facts(run(), **more))
    assert plan.status is not None
    assert (plan.status["phase"], plan.status["reason"]) == ("Pending", reason)
    assert plan.status["message"]
    assert [h.reason for h in plan.happenings] == [reason]


def test_a_run_just_applied_with_its_graph_does_not_complain_yet() -> None:
    plan = plan_run(facts(run(created=NOW), closure=Closure(Verdict(False, "GraphNotReady", "no such graph"))))
    assert plan.status is None
    assert plan.wake is not None
    assert 0 < plan.wake <= 2


def test_a_waiting_run_shows_its_position_and_is_not_opened() -> None:
    plan = plan_run(facts(queued(), place=Place(3, 2)))
    assert plan.status is not None
    assert plan.actions == ()
    assert "Position 3" in plan.status["message"]
    assert not is_phase_change(
        queued().status | {"observedGeneration": 1, "conditions": plan.status["conditions"]}, plan.status
    )  # type: ignore[operator]


def test_a_refused_input_fails_the_run_and_an_unreachable_store_does_not() -> None:
    refused = {Action.OPEN: Trouble("BadInput", "input.n is missing", final=True)}
    failed = plan_run(facts(queued(), place=Place(0, 1), trouble=refused)).status
    assert failed is not None
    assert (failed["phase"], failed["reason"]) == ("Failed", "BadInput")
    assert is_true(failed, "Stalled")
    later = {Action.OPEN: Trouble("StoreUnavailable", "no store")}
    waiting = plan_run(facts(queued(), place=Place(0, 1), trouble=later))
    assert waiting.status is not None
    assert (waiting.status["phase"], waiting.status["reason"]) == ("Queued", "StoreUnavailable")
    assert waiting.actions == (Action.OPEN,)


def test_a_running_run_that_no_driver_lists_is_opened_again_and_only_then() -> None:
    assert plan_run(facts(running(), listed=False)).actions == (Action.OPEN,)
    assert plan_run(facts(running(), listed=False, projection=PROJECTION)).actions == (Action.OPEN,)
    for listed in (True, None):
        assert plan_run(facts(running(), listed=listed)).actions == ()
    assert plan_run(facts(running(), listed=False, projection=ENDED)).actions == ()


def test_a_run_that_was_lost_again_and_again_is_opened_after_a_pause() -> None:
    plan = plan_run(facts(running(), listed=False, reopen_in=7.5))
    assert plan.actions == ()
    assert plan.wake == 7.5


def test_a_silent_pool_is_shown_only_after_a_while_and_loses_nothing() -> None:
    soon = plan_run(facts(running(), pool=PoolFacts(True, False, "…", silent=5.0), listed=None, projection=PROJECTION))
    assert soon.status is not None
    assert soon.status["reason"] == "Running"
    assert soon.wake == 25.0
    late = plan_run(facts(running(), pool=DOWN, listed=None, projection=PROJECTION))
    assert late.status is not None
    assert (late.status["phase"], late.status["reason"]) == ("Running", "DriverUnavailable")
    assert late.status["progress"] == "1/3"


def test_secrets_and_cancel_are_delivered_to_the_driver_that_has_the_run() -> None:
    wanted = facts(running(spec={"cancel": "Cancel"}), listed=True, secrets_due=True, cancel_due=True)
    assert set(plan_run(wanted).actions) == {Action.SEND_SECRETS, Action.CANCEL}
    assert plan_run(replace(wanted, secrets_due=False, cancel_due=False)).actions == ()
    assert plan_run(replace(wanted, listed=False)).actions == (Action.OPEN,)


def test_a_secret_that_cannot_be_used_keeps_a_queued_run_waiting() -> None:
    plan = plan_run(facts(queued(), secrets="Secret s is not labelled.", place=Place(0, 1)))
    assert plan.status is not None
    assert plan.status["reason"] == "SecretNotUsable"
    assert plan.actions == ()
    condition = find(plan.status, "Succeeded")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("Unknown", "SecretNotUsable")


def test_a_run_cancelled_before_it_started_ends_at_once() -> None:
    for waiting in (run(spec={"cancel": "Cancel"}), queued(spec={"cancel": "Cancel"})):
        plan = plan_run(facts(waiting, place=Place(2, 1)))
        assert plan.status is not None
        assert plan.status["phase"] == "Cancelled"
        assert plan.actions == ()


def test_a_cancelled_run_that_a_driver_has_is_cancelled_there() -> None:
    plan = plan_run(facts(queued(spec={"cancel": "Cancel"}), listed=True, cancel_due=True))
    assert plan.status is not None
    assert plan.status["phase"] == "Running"
    assert plan.actions == (Action.CANCEL,)


def test_an_ended_projection_ends_the_run_with_its_fields() -> None:
    plan = plan_run(facts(running(), listed=False, projection=ENDED))
    assert plan.status is not None
    assert (plan.status["phase"], plan.status["output"], plan.status["progress"]) == ("Succeeded", {"n": 1}, "1/3")
    assert plan.status["finishedAt"] == "2026-12-01T10:00:09Z"
    assert is_true(plan.status, "Completed")
    assert is_true(plan.status, "Succeeded")
    assert plan.actions == ()


def test_what_the_projection_no_longer_says_is_no_longer_shown() -> None:
    before = running()
    before = replace(before, status=dict(before.status or {}) | {"failures": [{"path": "/a"}], "output": 1})
    plan = plan_run(facts(before, listed=True, projection=PROJECTION))
    assert plan.status is not None
    assert "failures" not in plan.status
    assert "output" not in plan.status


def test_a_new_generation_of_an_ended_run_is_observed_and_nothing_else_changes() -> None:
    plan = plan_run(facts(ended(generation=2)))
    assert plan.status is not None
    assert plan.status["observedGeneration"] == 2
    assert [c["observedGeneration"] for c in plan.status["conditions"]] == [2]
    assert plan.status["phase"] == "Succeeded"
    assert plan.actions == ()


def test_the_ttl_counts_from_the_end_and_deletes() -> None:
    assert plan_run(facts(ended(spec={"ttlSecondsAfterFinished": 60}))).wake == 50.0
    assert plan_run(facts(ended(spec={"ttlSecondsAfterFinished": 10}))).actions == (Action.DELETE,)
    assert plan_run(facts(ended(spec={"ttlSecondsAfterFinished": 10}, deleting=True))).actions == ()


def test_a_run_that_a_gitops_tool_tracks_is_not_deleted_and_says_so() -> None:
    plan = plan_run(facts(ended(spec={"ttlSecondsAfterFinished": 0}, managed=True)))
    assert plan.actions == ()
    assert [h.reason for h in plan.happenings] == ["TTLIgnoredManagedByGitOps"]


def test_a_spec_that_is_too_large_fails_before_anything_else_is_looked_at() -> None:
    plan = plan_run(facts(run(spec_bytes=97 * 1024), closure=None, pool=PoolFacts(False)))
    assert plan.status is not None
    assert (plan.status["phase"], plan.status["reason"]) == ("Failed", "SpecTooLarge")


RANK = {"Pending": 0, "Queued": 1, "Running": 2, "Succeeded": 3, "Failed": 3, "Cancelled": 3}
CANCEL = {"cancel": "Cancel"}
RUNS = [
    run(),
    run(created=NOW),
    run(spec=CANCEL),
    run(spec_bytes=10**6),
    queued(),
    queued(spec=CANCEL),
    running(),
    running(spec=CANCEL),
    running(deleting=True),
    ended(),
    ended(generation=5),
    ended(spec={"ttlSecondsAfterFinished": 0}),
]
CLOSURES = [
    None,
    Closure(READY, DIGEST),
    Closure(READY, DIGEST, stored=True),
    Closure(Verdict(False, "CompileFailed", "x")),
]
POOLS = [UP, DOWN, PoolFacts(True), PoolFacts(False), PoolFacts(True, False, "", silent=1.0)]
PLACES = [None, Place(0, None), Place(0, 1), Place(12, 1)]
PROJECTIONS = [None, PROJECTION, ENDED, {}, {"phase": ["odd"]}, {"phase": "Failed", "message": "x" * 9999}]
TROUBLES = [Trouble("A", "a"), Trouble("BadInput", "b", final=True)]

anything = st.builds(
    lambda base, **more: facts(base, **more),
    st.sampled_from(RUNS),
    closure=st.sampled_from(CLOSURES),
    pool=st.sampled_from(POOLS),
    place=st.sampled_from(PLACES),
    listed=st.sampled_from([None, True, False]),
    opened=st.booleans(),
    opening=st.booleans(),
    projection=st.sampled_from(PROJECTIONS),
    secrets=st.sampled_from(["", "not usable"]),
    secrets_due=st.booleans(),
    cancel_due=st.booleans(),
    trouble=st.dictionaries(st.sampled_from(list(Action)), st.sampled_from(TROUBLES)),
)


@settings(max_examples=500)
@given(anything)
def test_no_run_goes_back_and_none_is_shown_queued_or_opened_without_its_digest(f: RunFacts) -> None:
    plan = plan_run(f)
    if plan.status is not None:
        assert RANK[plan.status["phase"]] >= RANK[f.run.phase]
        assert f.run.phase == plan.status["phase"] or not f.run.finished
        assert plan.status["observedGeneration"] == f.run.generation
        if plan.status["phase"] in ("Queued", "Running"):
            assert plan.status["graphDigest"] == DIGEST
        assert all(c["observedGeneration"] == f.run.generation for c in plan.status["conditions"])
        assert all(c["reason"] for c in plan.status["conditions"])
    if Action.OPEN in plan.actions:
        assert (f.run.status or {}).get("graphDigest") == DIGEST
        assert f.listed is not True or f.run.phase == "Queued"
    if Action.DELETE in plan.actions:
        assert f.run.finished
    if f.run.finished:
        assert set(plan.actions) <= {Action.DELETE}


@settings(max_examples=500)
@given(anything)
def test_the_plan_comes_to_rest_when_nothing_else_changes(f: RunFacts) -> None:
    for _ in range(5):
        plan = plan_run(f)
        if plan.status is None or plan.status == f.run.status:
            return
        f = replace(f, run=replace(f.run, status=plan.status))
    pytest.fail(f"five plans in a row each wanted another status: {f.run.status}")
