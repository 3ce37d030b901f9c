"""Approvals: the type of what people decide, and what a node that waits for them cannot have."""

from __future__ import annotations

from decurion_crds.compile.draft import NodeDraft
from decurion_crds.compile.report import Report
from decurion_crds.compiled import ApprovalBlock, Schema
from decurion_crds.expressions.shapes import branches, record, words

_UNFIT = {
    "output": "it is {approved, by, at, form}, and form says the type of the last",
    "retry": "people are asked once",
    "timeoutSeconds": "write it into approval, where it bounds the wait",
}


def approval_output(form: Schema | None) -> Schema:
    """The schema of what a node gives whose form has the schema `form`."""
    fields: dict[str, Schema] = {
        "approved": {"type": "boolean"},
        "by": {"type": "string"},
        "at": {"type": "string"},
    }
    if form is not None:
        fields["form"] = form
    return record(fields, ["approved"])


def check_approval(node: NodeDraft, report: Report) -> None:
    """Gives the node its output; what it cannot have is in the report."""
    written, block = node.model.to_json(), node.model.approval
    for name, why in _UNFIT.items():
        if name in written:
            report.add("FIELD-UNKNOWN", node.spot.below(name), f"an approval has no {name}: {why}; remove it")
    if node.form is not None and any(branch.get("type", "object") != "object" for branch in branches(node.form)):
        message = f"a form is an object, and this is {words(node.form)}; write name → schema"
        report.add("SCHEMA", node.spot.below("approval", "form"), message)
        node.form = None
    if block is not None and block.on_timeout is not None and block.timeout_seconds is None:
        message = "the wait has no end that onTimeout could be about; add timeoutSeconds, or remove onTimeout"
        report.add("FIELD-MISSING", node.spot.below("approval", "onTimeout"), message)
    people = block.approvers if block is not None else None
    if people is not None and people.users and not people.groups and len(set(people.users)) < (people.count or 1):
        message = f"{people.count} people have to approve, and {len(set(people.users))} may; name more, or lower count"
        report.add("FIELD-VALUE", node.spot.below("approval", "approvers", "count"), message)
    node.output = approval_output(node.form)


def approval_of(node: NodeDraft) -> ApprovalBlock | None:
    """The compiled block; None for nodes of other kinds."""
    block = node.model.approval
    if block is None or node.message is None:
        return None
    people = block.approvers
    return ApprovalBlock.model_validate(
        {
            "message": node.message.text,
            "form": node.form,
            "users": people.users if people else (),
            "groups": people.groups if people else (),
            "count": (people.count if people else None) or 1,
            "timeoutSeconds": block.timeout_seconds,
            "onTimeout": block.on_timeout or "fail",
            "onReject": block.on_reject or "fail",
        }
    )
