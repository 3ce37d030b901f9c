"""From a driver's projection to the status of a run: typed, bounded, always small enough to be written.

A projection comes from outside and may hold anything. `progress_fields` takes what the schema of the status allows,
of the right type and length, and drops the rest. `bounded` then holds the size: at most 32 KiB where that can be
reached by leaving out detail (soft), never above 64 KiB (hard); `smallest` is the form for an object that has no room
left. What was left out is said by the condition `StatusTruncated`; the ledger has everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

import orjson

from decurion_crds.v1alpha1 import (
    IDENTIFIER,
    MAX_APPROVALS,
    MAX_FAILURE_BYTES,
    MAX_FAILURES,
    MAX_INLINE_OUTPUT_BYTES,
    TERMINAL_PHASES,
    NodePhase,
)
from decurion_crds.v1alpha1.base import MAX_FINALS, MAX_NODES
from decurion_operator.conditions import (
    STATUS_TRUNCATED,
    Condition,
    JsonObject,
    Reason,
    cut,
    find,
    merge,
    seconds_of,
    timestamp,
)

SOFT_BYTES: Final = 32 * 1024
HARD_BYTES: Final = 64 * 1024
MESSAGE_BYTES: Final = 1024
PATH_BYTES: Final = 512

_COUNTERS = ("total", "running", "waiting", "succeeded", "failed", "skipped")
_NODE_PHASES = frozenset(get_args(NodePhase))
_MAX_COUNT = 2**53 - 1
_IDENTIFIER = re.compile(IDENTIFIER)
_DIGEST = re.compile(r"^[0-9a-f]{1,64}$")
_MONEY = re.compile(r"^[0-9]{1,16}(\.[0-9]{1,9})?$")
_PROGRESS = re.compile(r"^[0-9]{1,16}/[0-9]{1,16}$")


def progress_fields(projection: Mapping[str, Any]) -> JsonObject:
    """The fields of a status that a projection decides, but for phase, reason, message and conditions.

    Fields that the projection lacks, or whose values do not fit the schema, are absent.
    """
    found: JsonObject = {
        "attempt": _count(projection.get("attempt")),
        "startedAt": _time(projection.get("startedAt")),
        "finishedAt": _time(projection.get("finishedAt")),
        "progress": _matching(projection.get("progress"), _PROGRESS),
        "usage": _used(projection.get("usage"), ("calls", "inputTokens", "outputTokens", "toolCalls")),
        "limits": _limits(projection.get("limits")),
        "nodes": _nodes(projection.get("nodes")),
        "failures": _failures(projection.get("failures")),
        "ledger": _ledger(projection.get("ledger")),
        "nextWakeAt": _time(projection.get("nextWakeAt")),
        "approvals": _approvals(projection.get("approvals")),
        "pendingApprovals": _count(projection.get("pendingApprovals")),
        "stateHash": _matching(projection.get("stateHash"), _DIGEST),
    }
    found = {name: value for name, value in found.items() if value not in (None, {}, [])}
    output = projection.get("output")
    if output is not None and (size := _size(output)) is not None and size <= MAX_INLINE_OUTPUT_BYTES:
        found["output"] = output
    return found


PROJECTED: Final = (
    "attempt", "startedAt", "finishedAt", "progress", "usage", "limits", "nodes", "failures", "ledger", "stateHash",
    "output", "nextWakeAt", "approvals", "pendingApprovals",
)  # fmt: skip
"""The fields that `progress_fields` decides, all of them."""


def text_of(value: object, limit: int = MESSAGE_BYTES) -> str:
    """A text of a projection, cut to `limit` bytes; empty for anything but a string."""
    return cut(value, limit) if isinstance(value, str) else ""


def reason_of(value: object) -> str:
    """A reason of a projection: a CamelCase word, or empty."""
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,127}", value) else ""


def ended_phase(projection: Mapping[str, Any] | None) -> str:
    """The phase of a projection whose run has ended; empty while it has not."""
    phase = text_of((projection or {}).get("phase"))
    return phase if phase in TERMINAL_PHASES else ""


def bounded(status: JsonObject, *, live: Mapping[str, Any] | None, generation: int, now: float) -> JsonObject:
    """`status` in at most 32 KiB where leaving out detail reaches that, in at most 64 KiB always.

    `live` is the status as it is now: `StatusTruncated` turns False where it was True and nothing is left out any more.
    """

    def told(status: JsonObject, truncated: bool) -> JsonObject:
        return _with_mark(status, live, truncated=truncated, generation=generation, now=now)

    whole = told(status, False)
    if _fits(whole, SOFT_BYTES):
        return whole
    for step in _SOFT_STEPS:
        status = step(status)
        if _fits(cut_down := told(status, True), SOFT_BYTES):
            return cut_down
    return cut_down if _fits(cut_down, HARD_BYTES) else smallest(status, live=live, generation=generation, now=now)


def smallest(status: JsonObject, *, live: Mapping[str, Any] | None, generation: int, now: float) -> JsonObject:
    """Phase, reason, times, digests and the first conditions with short messages: a few KiB whatever came in."""
    kept: JsonObject = {
        name: status[name]
        for name in ("observedGeneration", "phase", "reason", "graphDigest", "attempt", "queuedAt", "startedAt",
                     "finishedAt", "progress", "stateHash", "nextWakeAt", "pendingApprovals")
        if name in status
    }  # fmt: skip
    if "message" in status:
        kept["message"] = cut(status["message"], MAX_FAILURE_BYTES)
    kept["conditions"] = [
        c | {"message": cut(str(c.get("message", "")), MAX_FAILURE_BYTES)} for c in status.get("conditions", [])[:8]
    ]
    return _with_mark(kept, live, truncated=True, generation=generation, now=now)


def patch_of(live: Mapping[str, Any] | None, desired: Mapping[str, Any]) -> list[JsonObject]:
    """JSON-patch operations that turn the live status into the desired one; empty when they are equal."""
    if live is None:
        return [{"op": "add", "path": "/status", "value": dict(desired)}]
    removed = [{"op": "remove", "path": f"/status/{name}"} for name in live if name not in desired]
    return removed + [
        {"op": "add", "path": f"/status/{name}", "value": value}
        for name, value in desired.items()
        if name not in live or live[name] != value
    ]


def _with_mark(
    status: JsonObject, live: Mapping[str, Any] | None, *, truncated: bool, generation: int, now: float
) -> JsonObject:
    before = find(live or {}, STATUS_TRUNCATED)
    others = [c for c in status.get("conditions", []) if c.get("type") != STATUS_TRUNCATED]
    if truncated:
        text = "Detail was left out to keep the status small: the ledger has it."
        mark = Condition(STATUS_TRUNCATED, "True", Reason.STATUS_CUT, text)
    elif before is not None:
        mark = Condition(STATUS_TRUNCATED, "False", Reason.STATUS_COMPLETE)
    else:
        return status
    return status | {"conditions": others + merge([before] if before else [], [mark], generation=generation, now=now)}


def _without_output(status: JsonObject) -> JsonObject:
    return {name: value for name, value in status.items() if name != "output"}


def _fewer_failures(status: JsonObject) -> JsonObject:
    failures = [f | {"message": cut(f.get("message", ""), 64)} for f in status.get("failures", [])[:3]]
    return status | ({"failures": failures} if failures else {})


def _fewer_approvals(status: JsonObject) -> JsonObject:
    approvals = status.get("approvals", [])[:5]
    return status | ({"approvals": approvals} if approvals else {})


def _bare_nodes(status: JsonObject) -> JsonObject:
    nodes = [{"name": n["name"], "phase": n["phase"]} for n in status.get("nodes", [])]
    return status | ({"nodes": nodes} if nodes else {})


_SOFT_STEPS: tuple[Callable[[JsonObject], JsonObject], ...] = (
    _fewer_failures,
    _fewer_approvals,
    _without_output,
    _bare_nodes,
)


def _fits(status: JsonObject, limit: int) -> bool:
    return len(orjson.dumps(status)) <= limit


def _size(value: object) -> int | None:
    try:
        return len(orjson.dumps(value))
    except TypeError:
        return None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT else None


def _counts(value: object, names: tuple[str, ...]) -> JsonObject:
    if not isinstance(value, Mapping):
        return {}
    return {name: count for name in names if (count := _count(value.get(name)))}


def _used(value: object, names: tuple[str, ...]) -> JsonObject:
    """Counts, with the costs where there are any."""
    cost = _matching(value.get("costUSD"), _MONEY) if isinstance(value, Mapping) else None
    return _counts(value, names) | ({"costUSD": cost} if cost is not None else {})


def _limits(value: object) -> JsonObject:
    """The limits of a run."""
    seconds = value.get("seconds") if isinstance(value, Mapping) else None
    timed = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= _MAX_COUNT
    return _used(value, ("tokens", "steps", "toolCalls")) | ({"seconds": seconds} if timed else {})


def _matching(value: object, pattern: re.Pattern[str]) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


def _time(value: object) -> str | None:
    seconds = seconds_of(value)
    return None if seconds is None else timestamp(seconds)


def _nodes(value: object) -> list[JsonObject]:
    if not isinstance(value, list):
        return []
    nodes = []
    for node in value[: MAX_NODES + MAX_FINALS]:
        if not isinstance(node, Mapping) or (name := _matching(node.get("name"), _IDENTIFIER)) is None:
            continue
        phase = text_of(node.get("phase"))
        kind = _matching(node.get("kind"), _IDENTIFIER)
        # A newer driver may know phases that this schema does not: the node is shown all the same.
        shown: JsonObject = {"name": name, "phase": phase if phase in _NODE_PHASES else "Pending"}
        nodes.append(shown | ({"kind": kind[:32]} if kind else {}) | _counts(node, _COUNTERS))
    return nodes


def _failures(value: object) -> list[JsonObject]:
    if not isinstance(value, list):
        return []
    return [
        {
            "path": text_of(failure.get("path"), PATH_BYTES),
            "class": text_of(failure.get("class"), 64),
            "message": text_of(failure.get("message"), MAX_FAILURE_BYTES),
        }
        for failure in value[:MAX_FAILURES]
        if isinstance(failure, Mapping)
    ]


def _approvals(value: object) -> list[JsonObject]:
    if not isinstance(value, list):
        return []
    found = []
    for one in value[:MAX_APPROVALS]:
        if not isinstance(one, Mapping):
            continue
        request, digest = _matching(one.get("request"), _DIGEST), _matching(one.get("digest"), _DIGEST)
        if request is None or digest is None:
            continue
        shown: JsonObject = {
            "node": text_of(one.get("node"), PATH_BYTES),
            "request": request,
            "digest": digest,
            "message": text_of(one.get("message"), MAX_FAILURE_BYTES),
        }
        found.append(shown | ({"due": due} if (due := _time(one.get("due"))) else {}))
    return found


def _ledger(value: object) -> JsonObject:
    if not isinstance(value, Mapping):
        return {}
    found = {
        "uri": text_of(value.get("uri"), 2048) or None,
        "slot": _count(value.get("slot")),
        "head": _matching(value.get("head"), _DIGEST),
    }
    return {name: field for name, field in found.items() if field is not None}
