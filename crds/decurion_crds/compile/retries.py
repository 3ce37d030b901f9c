"""`retry` of a node: what of it has an effect."""

from __future__ import annotations

from decurion_crds.compile.draft import NodeDraft
from decurion_crds.compile.report import Report


def check_retry(node: NodeDraft, report: Report) -> None:
    """That only an agent is to make a new plan."""
    retry, spot = node.model.retry, node.spot.below("retry")
    if retry is not None and retry.replan is not None and node.model.agent is None:
        message = f"an agent makes plans, and a node of kind {node.kind} makes none; remove it"
        report.add("FIELD-VALUE", spot.below("replan"), message)
