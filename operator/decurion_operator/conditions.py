"""Conditions and reasons: what programs read of our resources.

Every condition carries the generation it was made from; its transition time moves only with its status; its reason is
a constant of `Reason` and never empty. Conditions of other writers are kept as they are.
Names are those that kstatus (Helm 4, Flux, kpt) and `kubectl wait` read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

JsonObject = dict[str, Any]
Truth = Literal["True", "False", "Unknown"]

READY: Final = "Ready"
COMPILED: Final = "Compiled"
REFERENCES_RESOLVED: Final = "ReferencesResolved"
STALLED: Final = "Stalled"
COMPLETED: Final = "Completed"
SUCCEEDED: Final = "Succeeded"
RECONCILING: Final = "Reconciling"
STATUS_TRUNCATED: Final = "StatusTruncated"
WARNING: Final = "Warning"

MESSAGE_BYTES: Final = 1024
"""A condition's message is cut here: a status has up to five conditions and a hard bound."""


_YEAR_10000: Final = 253_402_300_800
_CONTROLS: Final = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Reason:
    """Every reason that the operator writes. They are part of the API: documents and scripts name them."""

    # definitions
    READY: Final = "Ready"
    COMPILED: Final = "Compiled"
    COMPILE_FAILED: Final = "CompileFailed"
    BUNDLE_TOO_LARGE: Final = "BundleTooLarge"
    COMPILE_TIMED_OUT: Final = "CompileTimedOut"
    SPEC_INVALID: Final = "SpecInvalid"
    SPEC_TOO_LARGE: Final = "SpecTooLarge"
    RESOLVED: Final = "Resolved"
    REFERENCE_MISSING: Final = "ReferenceMissing"
    REFERENCE_NOT_READY: Final = "ReferenceNotReady"
    SECRET_NOT_USABLE: Final = "SecretNotUsable"
    COMPILER_FAILED: Final = "CompilerFailed"
    HEALTHY: Final = "Healthy"
    UNKNOWN_FIELDS_DROPPED: Final = "UnknownFieldsDropped"
    # pools
    POOL_UNREACHABLE: Final = "PoolUnreachable"
    POOL_PROCESS_ENDED: Final = "PoolProcessEnded"
    LOCAL_POOLS_OFF: Final = "LocalPoolsOff"
    # runs
    GRAPH_NOT_READY: Final = "GraphNotReady"
    POOL_UNAVAILABLE: Final = "PoolUnavailable"
    STORE_UNAVAILABLE: Final = "StoreUnavailable"
    STORE_REFUSED: Final = "StoreRefused"
    DRIVER_UNAVAILABLE: Final = "DriverUnavailable"
    BUNDLE_MISSING: Final = "BundleMissing"
    STALE_LEADER: Final = "StaleLeader"
    BAD_INPUT: Final = "BadInput"
    SOURCE_MISSING: Final = "SourceMissing"
    QUEUED: Final = "Queued"
    RUNNING: Final = "Running"
    SUCCEEDED: Final = "Succeeded"
    FAILED: Final = "Failed"
    POOL_REFUSED: Final = "PoolRefused"
    CANCELLED: Final = "Cancelled"
    SUSPENDED: Final = "Suspended"
    SUSPENDING: Final = "Suspending"
    AWAITING_APPROVAL: Final = "AwaitingApproval"
    # approvals
    ACCEPTED: Final = "Accepted"
    REFUSED: Final = "Refused"
    # runs, on their way out
    STATUS_COMPLETE: Final = "Complete"
    STATUS_CUT: Final = "StatusTooLarge"
    TTL_IGNORED: Final = "TTLIgnoredManagedByGitOps"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as a planner wants it; the transition time is added when it is merged into what is there."""

    type: str
    status: Truth
    reason: str
    message: str = ""


def merge(
    live: Sequence[Mapping[str, Any]], wanted: Iterable[Condition], *, generation: int, now: float
) -> list[JsonObject]:
    """The conditions to write: `wanted` in their order, then those of `live` that are of another type.

    `now` is in Unix seconds. A live condition that already says the same is kept unchanged but for its generation.
    """
    before = {str(c.get("type")): c for c in live}
    merged: list[JsonObject] = []
    for condition in wanted:
        old = before.pop(condition.type, None)
        same = old is not None and old.get("status") == condition.status
        merged.append(
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": cut(condition.message, MESSAGE_BYTES),
                "lastTransitionTime": old["lastTransitionTime"] if same and old else timestamp(now),
                "observedGeneration": generation,
            }
        )
    return merged + [dict(c) for c in before.values()]


def find(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The condition of type `kind` of a live status."""
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), None)


def is_true(status: Mapping[str, Any], kind: str) -> bool:
    found = find(status, kind)
    return found is not None and found.get("status") == "True"


def timestamp(seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC, to the second, as Kubernetes writes times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: object) -> float | None:
    """Unix seconds of an RFC 3339 time between 1970 and 9999; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
        seconds = parsed.timestamp() if parsed.tzinfo else -1.0
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < _YEAR_10000 else None


def cut(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8, whole characters, with an ellipsis where something was lost.

    Control characters become question marks, for texts of models end up in terminals; so do lone surrogates, which no
    JSON writer accepts.
    """
    data = text.translate(_CONTROLS).encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - 3].decode("utf-8", "ignore") + "…"
