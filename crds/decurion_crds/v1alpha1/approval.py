"""Approvals: the block of a node that waits for people, and `Approval`, one decision of one person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from decurion_crds.v1alpha1.base import (
    MAX_ENTRIES,
    Conditions,
    FreeObject,
    Model,
    Resource,
    ResourceName,
    Rule,
    Schema,
    Text,
    atomic,
)

MAX_WAIT = 31_536_000.0
"""The longest that an approval waits, in seconds: a year."""
_Person = Annotated[str, Field(min_length=1, max_length=253)]


class Approvers(Model):
    """Who may decide, of those whom the cluster lets create Approvals. Absent, any of them."""

    users: Annotated[list[_Person], atomic(max_length=MAX_ENTRIES)] = Field(
        default_factory=list, description="Names of people, as the cluster knows them (kubectl auth whoami)."
    )
    groups: Annotated[list[_Person], atomic(max_length=MAX_ENTRIES)] = Field(
        default_factory=list,
        description="Groups of which a member may decide; the Approval names the group, and the cluster checks it.",
    )
    count: int | None = Field(
        None,
        ge=1,
        le=MAX_ENTRIES,
        description="How many different people have to approve; one who rejects is enough to reject. Default 1.",
    )

    later: ClassVar[Mapping[str, str]] = {"notAuthor": "name those who may decide by users or groups"}


class ApprovalBlock(Model):
    """Waits until people have decided."""

    message: Text = Field(description="What they are asked, with {{ expression }} over the names of with.")
    form: Schema | None = Field(
        None,
        description="What they fill in: a JSON Schema of an object (2020-12, see docs), the name of a shared schema, "
        "or name → schema. Absent, nothing.",
    )
    approvers: Approvers | None = Field(None, description="Who may decide; absent, whom the cluster lets.")
    timeout_seconds: float | None = Field(
        None,
        gt=0,
        le=MAX_WAIT,
        description="Longest wait, in seconds; it goes on while nothing of the run is open. Absent, no end.",
    )
    on_timeout: Literal["fail", "reject", "approve"] | None = Field(
        None,
        description="What a wait that is over means: fail fails the node (ApprovalTimeout); reject is a rejection; "
        "approve is an approval of nobody. Default fail.",
    )
    on_reject: Literal["fail", "continue"] | None = Field(
        None,
        description="What a rejection means: fail fails the node (Rejected); continue makes it data, approved: false. "
        "Default fail.",
    )


class RunRef(Model):
    """The run that an Approval is for."""

    name: ResourceName = Field(description="Name of the TaskGraphRun.")
    uid: str = Field(
        max_length=64,
        pattern=r"^[-a-zA-Z0-9]+$",
        description="Its uid: another run of this name is another run.",
    )


class ApprovalSpec(Model):
    """One decision of one person on one request of one run. It never changes."""

    run: RunRef = Field(description="The run that waits.")
    request: str = Field(
        max_length=64,
        pattern=r"^[0-9a-f]+$",
        description="The request, from status.approvals of the run: nothing can be approved before it was asked.",
    )
    digest: str = Field(
        max_length=64,
        pattern=r"^[0-9a-f]+$",
        description="Digest of what was shown, from the same place: what is approved is what was read.",
    )
    decision: Literal["Approve", "Reject"] = Field(description="The decision.")
    by: str = Field(
        min_length=1,
        max_length=253,
        description="Who decides: the name by which the cluster knows the caller; a policy refuses any other.",
    )
    group: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        description="The group as a member of which they decide, where the node asks for one; a policy refuses groups "
        "that the caller is not in.",
    )
    form: FreeObject | None = Field(None, description="What was filled in, where the node has a form.")
    comment: str | None = Field(None, max_length=4096, description="Why, for whoever reads the ledger.")

    kubernetes: ClassVar[Mapping[str, Any]] = {"x-kubernetes-map-type": "atomic"}
    rules = (
        Rule(
            cel="self == oldSelf",
            message="an Approval cannot be changed: what was decided stays; create another one",
            check=None,
        ),
    )


class ApprovalStatus(Model):
    """What became of the decision."""

    observed_generation: int | None = Field(None, description="Generation of the spec that the status was made from.")
    phase: Literal["Pending", "Accepted", "Refused"] | None = Field(
        None, description="Pending until the run has it; Accepted: it stands in the ledger; Refused: see message."
    )
    message: str | None = Field(None, max_length=4096, description="Why it was refused, or what it still waits for.")
    conditions: Conditions = Field(
        default_factory=list, description="Accepted (it stands in the ledger), Reconciling (until that is known)."
    )


class Approval(Resource):
    """One decision of one person on one request of a run: made by decurion approve."""

    kind: Literal["Approval"] = Field(description="Kind of the resource.")
    spec: ApprovalSpec = Field(description="The decision.")
    status: ApprovalStatus | None = Field(None, description="What became of it.")

    plural: ClassVar[str] = "approvals"
    short_name: ClassVar[str] = "tgap"
    category: ClassVar[str] = "decurion-runs"
    columns = (
        ("Run", ".spec.run.name"),
        ("Decision", ".spec.decision"),
        ("By", ".spec.by"),
        ("Phase", ".status.phase"),
    )
    wide_columns = (("Message", ".status.message"),)
