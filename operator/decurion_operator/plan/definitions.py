"""Planners of LLMs and TaskGraphs: from what is observed to the status that says it. Pure.

`Ready` is what others wait for: it is True when the object may be used. `Compiled` and `ReferencesResolved` say why
not. `Stalled` is True when nothing but a change of this very spec helps, so that installers fail at once instead of
waiting; a missing reference is no such case, since `kubectl apply -f folder/` has no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson

from decurion_crds.findings import Finding
from decurion_crds.v1alpha1 import MAX_SPEC_BYTES
from decurion_operator.cache import Resource
from decurion_operator.conditions import (
    COMPILED,
    READY,
    REFERENCES_RESOLVED,
    STALLED,
    Condition,
    JsonObject,
    Reason,
    cut,
    merge,
)

FINDINGS_BYTES: Final = 4 * 1024
MAX_FINDINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of one graph with given LLMs: the digest of the closure, or findings that forbid it.

    `findings` holds warnings too. `broken` is a reason and a sentence when the compiler gave no answer at all.
    """

    digest: str | None
    findings: tuple[Finding, ...] = ()
    broken: tuple[str, str] | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a graph can be run, and if not the reason and the sentence to show."""

    ready: bool
    reason: str
    message: str


def plan_llm(llm: Resource, *, findings: Sequence[Finding], secret: str, now: float) -> JsonObject:
    """The status of an LLM. `findings` are those of its parser; `secret` is what is wrong with its Secret, or empty."""
    if llm.too_large:
        return _status(llm, _broken(Reason.SPEC_TOO_LARGE, too_large(llm)), now=now)
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        return _status(llm, _broken(Reason.SPEC_INVALID, summary(errors)), now=now)
    conditions = [
        Condition(READY, "False" if secret else "True", Reason.SECRET_NOT_USABLE if secret else Reason.READY, secret),
        _resolved(Reason.SECRET_NOT_USABLE if secret else "", secret),
        Condition(STALLED, "False", Reason.HEALTHY),
    ]
    return _status(llm, conditions, now=now)


def plan_graph(
    graph: Resource, *, compiled: Compiled | None, missing: Sequence[str], unready: Mapping[str, str], now: float
) -> JsonObject | None:
    """The status of a TaskGraph; None while the compiler has not answered.

    `missing` are kinds and names (`LLM fast`) of what its closure names and does not exist; `unready` those that cannot
    be used, with the reason.
    """
    if graph.too_large:
        return _status(graph, _broken_graph(Reason.SPEC_TOO_LARGE, too_large(graph)), now=now)
    if compiled is None:
        return None
    findings = [f for f in compiled.findings if f.graph is None]
    own = _own_errors(compiled, unresolved=bool(missing or unready))
    verdict = judge(compiled, missing=missing, unready=unready)
    resolved = _resolved(*_reference_problem(missing, unready, compiled.findings))
    if compiled.broken is not None:
        compiled_is = Condition(COMPILED, "Unknown", *compiled.broken)
    elif own:
        compiled_is = Condition(COMPILED, "False", _why(own), summary(own))
    elif compiled.digest is None:
        compiled_is = Condition(COMPILED, "Unknown", resolved.reason, resolved.message)
    else:
        compiled_is = Condition(COMPILED, "True", Reason.COMPILED)
    conditions = [
        Condition(READY, "True" if verdict.ready else "False", verdict.reason, verdict.message),
        compiled_is,
        resolved,
        _stalled(_why(own), summary(own)) if own else Condition(STALLED, "False", Reason.HEALTHY),
    ]
    status = _status(graph, conditions, now=now)
    if compiled.digest is not None:
        status["digest"] = compiled.digest
    if findings:
        status["findings"] = bounded_findings(findings)
    return status


def judge(compiled: Compiled, *, missing: Sequence[str], unready: Mapping[str, str]) -> Verdict:
    """Whether the graph may be run with what it refers to as it is."""
    own = _own_errors(compiled, unresolved=bool(missing or unready))
    if compiled.broken is not None:
        return Verdict(False, *compiled.broken)
    if own:
        return Verdict(False, _why(own), summary(own))
    reason, message = _reference_problem(missing, unready, compiled.findings)
    return Verdict(not reason, reason or Reason.READY, message)


def summary(errors: Sequence[Finding]) -> str:
    """The first finding as `decurion validate` prints it, and how many more there are."""
    if not errors:
        return ""
    more = len(errors) - 1
    return errors[0].text() + (f" (and {more} more: see status.findings)" if more else "")


def bounded_findings(findings: Sequence[Finding]) -> list[JsonObject]:
    """The first findings, errors before warnings, in at most 4 KiB of JSON."""
    rows: list[JsonObject] = []
    room = FINDINGS_BYTES
    for f in sorted(findings, key=lambda f: f.severity != "error")[:MAX_FINDINGS]:
        row = {"code": f.code, "path": cut(f.path, 512), "message": cut(f.message, 1024), "severity": f.severity}
        room -= len(orjson.dumps(row)) + 1
        if room < 0:
            break
        rows.append(row)
    return rows


def too_large(resource: Resource) -> str:
    size, limit = -(-resource.spec_bytes // 1024), MAX_SPEC_BYTES // 1024
    return f"[SPEC-TOO-LARGE] The spec has {size} KiB of compact JSON, at most {limit} KiB are read: make it smaller."


def _reference_problem(
    missing: Sequence[str], unready: Mapping[str, str], findings: Sequence[Finding]
) -> tuple[str, str]:
    if missing:
        # The compiler's own words where it has them: the same as `decurion validate` prints.
        said = [f for f in findings if f.absent in missing]
        names = " and ".join(_named(one) for one in sorted(missing))
        return Reason.REFERENCE_MISSING, summary(said) or f"{names} does not exist: apply it."
    if unready:
        one, why = sorted(unready.items())[0]
        return Reason.REFERENCE_NOT_READY, f"{_named(one)} is not ready: {why}"
    inside = [f for f in findings if f.graph is not None and f.severity == "error"]
    if inside:
        why = summary([replace(f, graph=None) for f in inside])
        return Reason.REFERENCE_NOT_READY, f'TaskGraph "{inside[0].graph}" is not ready: {why}'
    return "", ""


def _named(one: str) -> str:
    """`LLM "fast"`."""
    kind, _, name = one.partition(" ")
    return f'{kind} "{name}"'


def _why(own: Sequence[Finding]) -> str:
    return Reason.BUNDLE_TOO_LARGE if own[0].code == "BUNDLE-TOO-LARGE" else Reason.COMPILE_FAILED


def _own_errors(compiled: Compiled, *, unresolved: bool) -> list[Finding]:
    """The errors that a change of the graph has to mend: all but those of other graphs, and those that say that a
    resource does not exist yet.

    One that exists and cannot be read is not there for the compiler either.
    """
    return [f for f in compiled.errors if f.graph is None and not (unresolved and f.absent is not None)]


def _resolved(reason: str, message: str) -> Condition:
    return Condition(REFERENCES_RESOLVED, "False" if reason else "True", reason or Reason.RESOLVED, message)


def _stalled(reason: str, message: str) -> Condition:
    return Condition(STALLED, "True", reason, message)


def _broken(reason: str, message: str) -> list[Condition]:
    return [
        Condition(READY, "False", reason, message),
        Condition(REFERENCES_RESOLVED, "Unknown", reason, message),
        _stalled(reason, message),
    ]


def _broken_graph(reason: str, message: str) -> list[Condition]:
    ready, resolved, stalled = _broken(reason, message)
    return [ready, Condition(COMPILED, "False", reason, message), resolved, stalled]


def _status(resource: Resource, conditions: Sequence[Condition], *, now: float) -> JsonObject:
    live = (resource.status or {}).get("conditions") or ()
    return {
        "observedGeneration": resource.generation,
        "conditions": merge(live, conditions, generation=resource.generation, now=now),
    }
