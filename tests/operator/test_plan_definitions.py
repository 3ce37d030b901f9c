"""What the status of a graph, a model and a pool says, from facts alone."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decurion_crds.findings import CODES, Finding
from decurion_operator.cache import Resource
from decurion_operator.conditions import find
from decurion_operator.plan.definitions import Compiled, bounded_findings, plan_graph, plan_llm
from decurion_operator.plan.pool import Reach, plan_pool
from decurion_operator.queue import Key

NOW = 1_800_000_000.0
CYCLE = Finding("CYCLE", "nodes.a.with.x", "a waits for b and b for a; remove one of the reads.")
MISSING = Finding("REF-MISSING", "nodes.read.llm.ref", 'no LLM "fast"; apply it or name another.', absent="LLM fast")
UNUSED = Finding("UNUSED", "templates.t", "nothing uses t.", severity="warning")


def resource(kind: str, **more: Any) -> Resource:
    fields: dict[str, Any] = {
        "key": Key(kind, "ns", "x"),
        "uid": "u",
        "version": "1",
        "generation": 4,
        "created": NOW - 100,
        "deleting": False,
        "managed": False,
        "spec_bytes": 100,
        "object_bytes": 1000,
        "spec": {},
        "status": {"observedGeneration": -1},
    }
    return Resource(**fields | more)


def said(status: Any) -> dict[str, tuple[str, str]]:
    assert status is not None
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def graph_status(compiled: Compiled | None, missing: tuple[str, ...] = (), **unready: str) -> Any:
    named = {f"LLM {name}": why for name, why in unready.items()}
    return plan_graph(resource("TaskGraph"), compiled=compiled, missing=missing, unready=named, now=NOW)


def test_a_good_graph_is_ready_and_shows_its_digest_and_warnings() -> None:
    status = graph_status(Compiled("ab" * 32, (UNUSED,)))
    assert said(status) == {
        "Ready": ("True", "Ready"),
        "Compiled": ("True", "Compiled"),
        "ReferencesResolved": ("True", "Resolved"),
        "Stalled": ("False", "Healthy"),
    }
    assert status["digest"] == "ab" * 32
    assert [f["code"] for f in status["findings"]] == ["UNUSED"]
    assert status["observedGeneration"] == 4


def test_a_broken_graph_stalls_and_says_the_first_finding_as_validate_prints_it() -> None:
    status = graph_status(Compiled(None, (CYCLE, UNUSED, CYCLE)))
    assert said(status)["Ready"] == ("False", "CompileFailed")
    assert said(status)["Stalled"] == ("True", "CompileFailed")
    ready = find(status, "Ready")
    assert ready is not None
    assert ready["message"].startswith(CYCLE.text())
    assert "1 more" in ready["message"]
    assert "digest" not in status


def test_a_missing_llm_is_waited_for() -> None:
    status = graph_status(Compiled(None, (MISSING,)), missing=("LLM fast",))
    assert said(status) == {
        "Ready": ("False", "ReferenceMissing"),
        "Compiled": ("Unknown", "ReferenceMissing"),
        "ReferencesResolved": ("False", "ReferenceMissing"),
        "Stalled": ("False", "Healthy"),
    }
    ready = find(status, "Ready")
    assert ready is not None
    assert ready["message"] == MISSING.text()


def test_a_missing_llm_does_not_hide_what_only_the_graph_can_mend() -> None:
    status = graph_status(Compiled(None, (MISSING, CYCLE)), missing=("LLM fast",))
    assert said(status)["Stalled"] == ("True", "CompileFailed")
    assert said(status)["ReferencesResolved"] == ("False", "ReferenceMissing")


def test_a_missing_template_is_the_graphs_own_mistake() -> None:
    own = Finding("REF-MISSING", "nodes.extract.map.template", 'no template "one".')
    assert said(graph_status(Compiled(None, (own,))))["Stalled"] == ("True", "CompileFailed")


def test_an_llm_that_is_not_ready_is_named_with_its_reason() -> None:
    status = graph_status(Compiled("ab" * 32), fast="Secret s is not labelled.")
    assert said(status)["Ready"] == ("False", "ReferenceNotReady")
    assert said(status)["Compiled"] == ("True", "Compiled")
    ready = find(status, "Ready")
    assert ready is not None
    assert 'LLM "fast"' in ready["message"]
    assert "not labelled" in ready["message"]


def test_a_compiler_without_an_answer_is_no_verdict_on_the_graph() -> None:
    assert graph_status(None) is None
    status = graph_status(Compiled(None, broken=("CompileTimedOut", "no answer within 60 s: make the graph smaller.")))
    assert said(status)["Compiled"] == ("Unknown", "CompileTimedOut")
    assert said(status)["Stalled"] == ("False", "Healthy")


@pytest.mark.parametrize("kind", ["TaskGraph", "LLM", "WorkerPool"])
def test_a_spec_that_is_too_large_is_refused_before_anything_else(kind: str) -> None:
    big = resource(kind, spec_bytes=97 * 1024)
    if kind == "TaskGraph":
        status = plan_graph(big, compiled=None, missing=(), unready={}, now=NOW)
    elif kind == "LLM":
        status = plan_llm(big, findings=(), secret="", now=NOW)
    else:
        status = plan_pool(big, findings=(), secret="", reach=Reach(None), running=0, queued=0, now=NOW)
    assert said(status)["Ready"] == ("False", "SpecTooLarge")
    assert said(status)["Stalled"] == ("True", "SpecTooLarge")


def test_an_llm_whose_secret_cannot_be_used_waits_for_it() -> None:
    status = plan_llm(resource("LLM"), findings=(), secret="Secret s is not labelled.", now=NOW)
    assert said(status) == {
        "Ready": ("False", "SecretNotUsable"),
        "ReferencesResolved": ("False", "SecretNotUsable"),
        "Stalled": ("False", "Healthy"),
    }


def test_a_pool_is_ready_when_it_answers() -> None:
    def status(reach: Reach) -> Any:
        return plan_pool(resource("WorkerPool"), findings=(), secret="", reach=reach, running=2, queued=3, now=NOW)

    assert status(Reach(None)) is None
    assert said(status(Reach(True)))["Ready"] == ("True", "Ready")
    assert (status(Reach(True))["running"], status(Reach(True))["queued"]) == (2, 3)
    assert said(status(Reach(False, "no answer")))["Ready"] == ("False", "PoolUnreachable")


findings = st.builds(
    Finding,
    st.sampled_from(sorted(CODES)),
    st.text(max_size=2000),
    st.text(max_size=3000),
    st.sampled_from(["error", "warning"]),
)


@given(st.lists(findings, max_size=30))
def test_findings_stay_below_4_kib_with_errors_first(found: list[Finding]) -> None:
    rows = bounded_findings(found)
    assert len(orjson.dumps(rows)) <= 4 * 1024
    assert [r["severity"] for r in rows] == sorted((r["severity"] for r in rows), key=lambda s: s != "error")


@given(st.lists(findings, min_size=1, max_size=30), st.sets(st.sampled_from(["fast", "slow"])))
def test_whatever_the_compiler_finds_the_graph_is_ready_only_with_a_digest_and_no_error(
    found: list[Finding], missing: set[str]
) -> None:
    errors = any(f.severity == "error" for f in found)
    status = graph_status(Compiled(None if errors else "ab" * 32, tuple(found)), missing=tuple(sorted(missing)))
    ready = said(status)["Ready"][0] == "True"
    assert ready == (not errors and not missing)
    assert len(orjson.dumps(status)) < 16 * 1024


def test_a_closure_that_is_too_large_has_a_reason_of_its_own() -> None:
    large = Finding("BUNDLE-TOO-LARGE", "", "compiled, the graph has 3,000,000 bytes; bind fewer names")
    status = graph_status(Compiled(None, (large,)))
    assert said(status)["Ready"] == said(status)["Compiled"] == ("False", "BundleTooLarge")
    assert said(status)["Stalled"] == ("True", "BundleTooLarge")


def test_what_is_wrong_in_another_graph_is_waited_for_and_told_there() -> None:
    inside = Finding("EXPR-FIELD", "nodes.a.with.x", 'no field "y"', graph="inner")
    status = graph_status(Compiled(None, (inside, UNUSED)))
    assert said(status) == {
        "Ready": ("False", "ReferenceNotReady"),
        "Compiled": ("Unknown", "ReferenceNotReady"),
        "ReferencesResolved": ("False", "ReferenceNotReady"),
        "Stalled": ("False", "Healthy"),
    }
    assert [row["code"] for row in status["findings"]] == [UNUSED.code]
    ready = find(status, "Ready")
    assert ready is not None
    assert ready["message"] == 'TaskGraph "inner" is not ready: nodes.a.with.x [EXPR-FIELD] no field "y"'
