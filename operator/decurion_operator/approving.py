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
from decurion_operator.errors import ClusterError, ClusterUnavailable
from decurion_operator.gateway import Gateway
from decurion_operator.metrics import Meter
from decurion_operator.queue import Key
from decurion_operator.settings import OperatorSettings


class NothingAsked(InputError):
    """A run waits for nobody, or not at the node that was named."""


class NotAccepted(InputError):
    """The run did not take a decision, for the reason in the message."""


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

    Raises `NothingAsked`, `NotAccepted`, `StartError`, a `ClusterError`.
    """
    gateway = await Gateway.connect(OperatorSettings(kubeconfig=kubeconfig), Meter())
    try:
        spec = await _spec(gateway, run, decision, namespace)
        name = f"{cut(run, 40)}-{secrets.token_hex(5)}"
        body = {"apiVersion": API_VERSION, "kind": "Approval", "metadata": {"name": name}, "spec": spec}
        await gateway.create("Approval", namespace, body)
        said = await _settled(gateway, Key("Approval", namespace, name), seconds)
    finally:
        await gateway.aclose()
    word = "approved" if decision.approve else "rejected"
    if said.get("phase") == "Refused":
        raise NotAccepted(f"run {run}: {str(said.get('message') or 'the decision was refused').rstrip('.')}")
    if said.get("phase") == "Accepted":
        return f"{word} by {spec['by']} (approval {name})"
    return f"{word} by {spec['by']}; approval {name} is not handed over yet: kubectl get tgap {name}"


async def _spec(gateway: Gateway, run: str, decision: Decision, namespace: str) -> dict[str, Any]:
    found = await gateway.get(Key("TaskGraphRun", namespace, run))
    status = found.get("status") or {}
    pending = [one for one in status.get("approvals") or () if decision.node in ("", one["node"])]
    if not pending:
        where = f" at {decision.node}" if decision.node else ""
        raise NothingAsked(
            f"run {run} ({status.get('phase') or 'Pending'}) waits for nobody{where}; see kubectl get tgr {run} -o yaml"
        )
    if len(pending) > 1 or (not decision.node and int(status.get("pendingApprovals") or 1) > 1):
        nodes = ", ".join(one["node"] for one in pending[:5])
        raise NothingAsked(f"run {run} asks several things; name the node that you decide, such as one of {nodes}")
    spec = {
        "run": {"name": run, "uid": found["metadata"]["uid"]},
        "request": pending[0]["request"],
        "digest": pending[0]["digest"],
        "decision": "Approve" if decision.approve else "Reject",
        "by": await gateway.user(),
        "group": decision.group,
        "form": dict(decision.form) if decision.form is not None else None,
        "comment": decision.comment,
    }
    return {name: value for name, value in spec.items() if value not in ("", None)}


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
