"""What `decurion approve` does on a cluster: it looks at what a run asks, and creates an Approval in one's own name."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decurion_crds.errors import InputError
from decurion_crds.v1alpha1 import API_VERSION
from decurion_operator.conditions import cut
from decurion_operator.errors import ClusterError, ClusterUnavailable, NotFound, OperatorError, Refused
from decurion_operator.gateway import Gateway
from decurion_operator.metrics import Meter
from decurion_operator.queue import Key
from decurion_operator.settings import OperatorSettings


class NothingAsked(InputError):
    """A run waits for nobody, or not at the node that was named."""


class NotAccepted(InputError):
    """A decision was not taken, by the run or by the API server, for the reason in the message."""


class Unanswered(OperatorError):
    """The API server gave no answer, or asked to come back later; nothing was decided."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided about one request. `node` may be left out where the run asks one thing alone."""

    approve: bool
    node: str = ""
    group: str = ""
    comment: str = ""
    form: Mapping[str, Any] | None = None


async def approve(run: str, decision: Decision, *, namespace: str, kubeconfig: str | None, seconds: float) -> str:
    """Give a decision on a cluster and wait up to `seconds` for what becomes of it; the sentence to show.

    Raises `NothingAsked`, `NotAccepted`, `Unanswered`, `StartError`, a `ClusterError`.
    """
    gateway = await Gateway.connect(OperatorSettings(kubeconfig=kubeconfig), Meter())
    try:
        spec = await _spec(gateway, run, decision, namespace)
        name = f"{cut(run, 40)}-{secrets.token_hex(5)}"
        body = {"apiVersion": API_VERSION, "kind": "Approval", "metadata": {"name": name}, "spec": spec}
        await _create(gateway, run, namespace, body)
        said = await _settled(gateway, Key("Approval", namespace, name), seconds)
    finally:
        await gateway.aclose()
    word = "approved" if decision.approve else "rejected"
    if said.get("phase") == "Refused":
        raise NotAccepted(f"run {run}: {str(said.get('message') or 'the decision was refused').rstrip('.')}")
    if said.get("phase") == "Accepted":
        return f"{word} by {spec['by']} (approval {name})"
    return f"{word} by {spec['by']}; approval {name} is not handed over yet: kubectl get tgap {name} -n {namespace}"


async def _create(gateway: Gateway, run: str, namespace: str, body: dict[str, Any]) -> None:
    try:
        await gateway.create("Approval", namespace, body)
    except (Refused, NotFound) as error:
        raise NotAccepted(f"run {run}: the decision was refused: {error.said or error}") from error
    except ClusterUnavailable as error:
        raise Unanswered(_unanswered(error)) from error


def _unanswered(error: ClusterUnavailable) -> str:
    """Nothing asks again by itself here."""
    said = str(error).partition(": it will")[0]
    return f"{said}: check the cluster and the kubeconfig, and decide again."


async def _spec(gateway: Gateway, run: str, decision: Decision, namespace: str) -> dict[str, Any]:
    try:
        found = await gateway.get(Key("TaskGraphRun", namespace, run))
        pending = _pending(run, found.get("status") or {}, decision.node)
        by = await gateway.user()
    except NotFound as error:
        where = f"in namespace {namespace}; see kubectl get tgr -n {namespace}"
        raise NothingAsked(f'there is no TaskGraphRun "{run}" {where}') from error
    except ClusterUnavailable as error:
        raise Unanswered(_unanswered(error)) from error
    spec = {
        "run": {"name": run, "uid": found["metadata"]["uid"]},
        "request": pending["request"],
        "digest": pending["digest"],
        "decision": "Approve" if decision.approve else "Reject",
        "by": by,
        "group": decision.group,
        "form": dict(decision.form) if decision.form is not None else None,
        "comment": decision.comment,
    }
    return {name: value for name, value in spec.items() if value not in ("", None)}


def _pending(run: str, status: Mapping[str, Any], node: str) -> Mapping[str, Any]:
    """The one request of a run that is meant. Raises `NothingAsked`."""
    shown: list[Mapping[str, Any]] = list(status.get("approvals") or ())
    total = max(len(shown), int(status.get("pendingApprovals") or 0))
    first = ", ".join(one["node"] for one in shown[:5])
    if not shown:
        where = f" at {node}" if node else ""
        raise NothingAsked(f"run {run} ({status.get('phase') or 'Pending'}) waits for nobody{where}")
    if not node and total > 1:
        raise NothingAsked(f"run {run} asks {total} things; name the node that you decide, such as one of {first}")
    meant = [one for one in shown if node in ("", one["node"])]
    if meant:
        return meant[0]
    if total > len(shown):
        raise NothingAsked(
            f"run {run} does not show {node} among the first {len(shown)} of {total} that wait; decide some of these "
            "first, and the next are shown"
        )
    raise NothingAsked(f"run {run} ({status.get('phase')}) waits for nobody at {node}; it waits at {first}")


async def _settled(gateway: Gateway, key: Key, seconds: float) -> Mapping[str, Any]:
    """The status of an Approval once it is decided, or as it is when the time is over."""
    status: Mapping[str, Any] = {}
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        try:
            status = (await gateway.get(key)).get("status") or {}
        except ClusterUnavailable:
            status = {}
        except ClusterError:
            return status  # who may create one need not be allowed to read it
        if status.get("phase") in ("Accepted", "Refused"):
            break
        await asyncio.sleep(0.3)
    return status
