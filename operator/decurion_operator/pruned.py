"""Fields that were applied and that the API server dropped, since no schema of ours knows them.

kubectl and server-side apply refuse an unknown field before it is stored. Clients that do not ask for that (Argo CD
without server-side apply, `kubectl --validate=false`, client libraries) lose it without a word; but client-side apply
leaves a copy of what was applied in an annotation, and that still shows the typo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from decurion_crds.v1alpha1 import API_VERSION, parse_resource
from decurion_operator.conditions import WARNING, Condition, JsonObject, Reason, find, merge

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_SHOWN: Final = 3


def pruned_fields(kind: str, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """What was dropped of the spec of an object, one sentence for each field; the first few."""
    text = (raw["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    if not isinstance(text, str):
        return ()
    try:
        applied = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ()
    spec = applied.get("spec") if isinstance(applied, dict) else None
    if not isinstance(spec, dict) or not _lacks(raw.get("spec"), spec):
        return ()
    # Something is not there that was applied: dropped, or taken out by somebody since. The parser knows the schema.
    meta = {"name": raw["metadata"]["name"]}
    findings = parse_resource({"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec})[1]
    return tuple(f"{f.path}: {f.message}" for f in findings if f.code == "FIELD-UNKNOWN")[:_SHOWN]


def warned(
    status: JsonObject, dropped: tuple[str, ...], *, live: Mapping[str, Any] | None, generation: int, now: float
) -> JsonObject:
    """`status` with the condition `Warning` about fields that were dropped; False once there are none any more."""
    before = find(live or {}, WARNING)
    if dropped:
        text = (
            f"Fields that no schema knows were dropped: {'; '.join(dropped)} (apply with --server-side, in Argo CD "
            "ServerSideApply=true, to have them refused instead)"
        )
        mark = Condition(WARNING, "True", Reason.UNKNOWN_FIELDS_DROPPED, text)
    elif before is not None:
        mark = Condition(WARNING, "False", Reason.HEALTHY)
    else:
        return status
    others = [c for c in status.get("conditions", []) if c.get("type") != WARNING]
    return status | {"conditions": others + merge([before] if before else [], [mark], generation=generation, now=now)}


def _lacks(live: object, applied: object) -> bool:
    """Whether `live` lacks a member of an object of `applied`. Null members count as absent; values do not matter."""
    if isinstance(applied, dict):
        if not isinstance(live, dict):
            return True
        return any(v is not None and (k not in live or _lacks(live[k], v)) for k, v in applied.items())
    if isinstance(applied, list):
        if not isinstance(live, list) or len(live) < len(applied):
            return True
        return any(_lacks(one, other) for one, other in zip(live, applied, strict=False))
    return False
