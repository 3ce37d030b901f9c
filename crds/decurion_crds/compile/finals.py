"""The `finally` of a graph or template: what its nodes may not be, and what they know of how the others ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from decurion_crds.compile.draft import GraphDraft, ScopeDraft
from decurion_crds.compile.order import Order
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compiled import FINALLY, Schema
from decurion_crds.expressions.shapes import nullable, record
from decurion_crds.v1alpha1 import Node

__all__ = ["ENDED_RUN", "FINALLY", "check_finals", "check_given_up", "final_name"]

_TEXT: Schema = {"type": "string"}
_FAILURE: Schema = {
    "title": "failure",
    **record({"path": _TEXT, "class": _TEXT, "code": _TEXT, "message": _TEXT}),
}
ENDED_RUN: Schema = {
    "title": "run",
    **record(
        {
            "id": _TEXT,
            "scheduledAt": _TEXT,
            "outcome": {"type": "string", "enum": ["Succeeded", "Failed", "Cancelled"]},
            "failure": nullable(_FAILURE),
        }
    ),
}
"""`run` as nodes of `finally` see it."""


def final_name(scope: str) -> str:
    """The name in the draft of the scope of the `finally` of the scope of this name."""
    return f"{scope}/{FINALLY}" if scope else FINALLY


def check_given_up(draft: GraphDraft, orders: Mapping[str, Order], report: Report) -> None:
    """That nothing with a `finally` inside may be given up in a race: it would have to run, and the race to wait."""
    has: dict[str, bool] = {}

    def final(scope: ScopeDraft) -> bool:
        if scope.name not in has:
            below = (draft.scopes[use.scope] for node in scope.nodes.values() for use in node.uses())
            has[scope.name] = scope.final is not None or any(final(one) for one in below)
        return has[scope.name]

    for scope in draft.scopes.values():
        racers = {name for node in scope.nodes.values() if node.race is not None for name in node.race.racers}
        lost = racers.union(*(orders[scope.name].ancestors[name] for name in racers))
        for node in scope.nodes.values():
            for use in node.uses() if node.name in lost else ():
                if final(draft.scopes[use.scope]):
                    message = (
                        f"the {use.shown} has a finally, and {node.name} may be given up in a race, which is not built "
                        "yet; remove join from the node that it races for, or do in a node what finally does"
                    )
                    report.add("NOT-SUPPORTED", use.spot, message)


def check_finals(nodes: Sequence[Node], root: ScopeDraft, spot: Spot, report: Report) -> None:
    """Names that are taken, and fields that say nothing in `finally`."""
    seen: set[str] = set()
    for i, node in enumerate(nodes):
        place = spot.item(i, node.name)
        if node.name in seen or node.name in root.nodes:
            message = f'there are two of the name "{node.name}"; rename one node'
            report.add("DUPLICATE-NAME", place, message)
        seen.add(node.name)
        for j, name in enumerate(node.after):
            if name in root.nodes:
                message = f"{name} has ended before any node of finally begins; remove it"
                report.add("FIELD-VALUE", place.below("after").at(j), message)
        if node.writes:
            message = "nothing reads a channel once finally runs; read nodes.NAME.output of this node instead"
            report.add("FIELD-UNKNOWN", place.below("writes"), message)
