"""Loops: what a round sees, what its output and the next round's input have to be, and what makes no sense."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.compile.draft import NodeDraft
from decurion_crds.compile.report import Report, Spot, inputs_hint
from decurion_crds.compiled import ITERATIONS, Schema
from decurion_crds.expressions.shapes import branches, record, words
from decurion_crds.findings import Fix, did_you_mean
from decurion_crds.v1alpha1.taskgraph import LoopBlock

ROUND_NAMES = ("output", "iteration")
"""What the expressions of a loop see beside the names of the scope."""
ITERATION: Schema = {"type": "integer"}
SCORE: Schema = {"type": "number"}


def check_block(block: LoopBlock, spot: Spot, report: Report) -> None:
    """What is written must have an effect."""
    if block.keep == "best" and block.score is None:
        message = "the best round is the one of the highest score, and there is no score; add one, or write keep: last"
        report.add("FIELD-MISSING", spot.below("keep"), message)
    elif block.score is not None and block.keep == "last":
        report.add("FIELD-VALUE", spot.below("score"), "nothing uses the score; write keep: best, or remove it")
    if block.until is None and block.on_exhausted == "fail":
        message = "without until all rounds run, and then the loop fails; add until, or write onExhausted: succeed"
        report.add("FIELD-VALUE", spot.below("onExhausted"), message)


def check_next(node: NodeDraft, template: Schema, report: Report) -> None:
    """That `next` names inputs of the template."""
    if "properties" not in template or node.body is None or node.model.loop is None:
        return
    declared = list(template["properties"])
    for name in node.model.loop.next:
        if name not in declared:
            meant = did_you_mean(name, declared)
            hint = f'did you mean "{meant}"?' if meant else inputs_hint(name, declared)
            message = f'the {node.body.shown} has no input "{name}"; {hint}'
            spot = node.spot.below("loop").below("next", name).key()
            report.add("FIELD-UNKNOWN", spot, message, fix=Fix(name, meant) if meant else None)


def loop_output(node: NodeDraft, result: Schema, report: Report) -> Schema | None:
    """The type of a loop's output, given that of a round; None when there can be none, which is in the report."""
    spot = node.body.spot if node.body is not None else node.spot
    shown = node.body.shown if node.body is not None else "template"
    parts = branches(result)
    if len(parts) != 1 or parts[0].get("type") != "object" or "properties" not in parts[0]:
        message = (
            f"a loop adds {ITERATIONS} to the output of a round, and that of the {shown} is {words(result)}; "
            "give its output fields"
        )
        report.add("OUTPUT-TYPE", spot, message)
        return None
    properties: Mapping[str, Schema] = parts[0]["properties"]
    if ITERATIONS in properties:
        message = f"a loop adds {ITERATIONS} to the output of a round, and the {shown} has it already; rename its field"
        report.add("DUPLICATE-NAME", spot, message)
        return None
    required = [*parts[0].get("required", ()), ITERATIONS]
    return record({**properties, ITERATIONS: {"type": "integer"}}, required)
