"""The `finally` of a graph: what its nodes may not be, and what they know of how the run ended."""

from __future__ import annotations

from collections.abc import Sequence

from decurion_crds.compile.draft import ScopeDraft
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compiled import FINALLY, Schema
from decurion_crds.expressions.shapes import nullable, record
from decurion_crds.v1alpha1 import Node

__all__ = ["ENDED_RUN", "FINALLY", "check_finals"]

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
