"""`TaskGraphRun`: one execution of a graph. Its spec is immutable but for control fields; its status is a
projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from decurion_crds.v1alpha1.base import (
    MAX_ENTRIES,
    MAX_FINALS,
    MAX_NODES,
    Conditions,
    Free,
    FreeObject,
    Identifier,
    Model,
    Resource,
    ResourceName,
    Rule,
    atomic,
    one_of,
)

RunPhase = Literal["Pending", "Queued", "Running", "Suspended", "Succeeded", "Failed", "Cancelled"]
NodePhase = Literal["Pending", "Running", "Waiting", "Succeeded", "Failed", "Skipped", "Cancelled", "NotRun"]
CancelForm = Literal["Cancel", "CancelAndFinally", "Stop"]
TERMINAL_PHASES: frozenset[RunPhase] = frozenset({"Succeeded", "Failed", "Cancelled"})
MAX_FAILURES = 10
MAX_APPROVALS = 20
MAX_FAILURE_BYTES = 256
MAX_INLINE_OUTPUT_BYTES = 4 * 1024


def _immutable(field: str) -> Rule:
    """The form with `has()`: comparing the fields alone lets an optional field be added or removed."""
    return Rule(
        cel=f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        message=f"{field} cannot be changed: a run is what it was created as; create another run",
        check=None,
        field=f".{field}",
    )


class InputFrom(Model):
    """An input that is read from a file. It is pinned by its digest and copied in before use."""

    uri: str = Field(
        max_length=2048,
        pattern=r"^(s3|file)://[^\s]+$",
        description="A JSON object: s3://bucket/key of the pool's store, or file:///path on a laptop.",
    )


class Overrides(Model):
    """Replacements for one run."""

    llms: Annotated[dict[str, ResourceName], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=dict, description="Name of an LLM in the graph → name of the LLM to use instead."
    )
    servers: Annotated[dict[str, ResourceName], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=dict,
        description="Name of an MCPServer in the graph → name of the MCPServer to use instead; its tools must fit.",
    )

    @property
    def by_kind(self) -> dict[str, dict[str, str]]:
        """The replacements by the kind of what is replaced."""
        return {"LLM": dict(self.llms), "MCPServer": dict(self.servers)}

    kubernetes: ClassVar[Mapping[str, Any]] = {"x-kubernetes-map-type": "atomic"}


_UID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
_RUN_TEXT = "Name of a TaskGraphRun of this namespace, of the same pool."
_ELSEWHERE = "copy the run into the ledger of the pool by decurion ledger copy, and name it by uid"
_UID_TEXT = "Identity of a run in the pool's ledger (metadata.uid, or what decurion run shows), for one deleted since."


class RetryFrom(Model):
    """A run that has failed or was cancelled. One of run and uid."""

    run: ResourceName | None = Field(None, description=_RUN_TEXT)
    uid: str | None = Field(None, pattern=_UID, max_length=128, description=_UID_TEXT)

    rules = (one_of("run", "uid"),)
    later: ClassVar[Mapping[str, str]] = {"uri": _ELSEWHERE}


class ForkFrom(Model):
    """A run that has ended, and what of it runs again. One of run and uid."""

    run: ResourceName | None = Field(None, description=_RUN_TEXT)
    uid: str | None = Field(None, pattern=_UID, max_length=128, description=_UID_TEXT)
    path: str = Field(
        max_length=1024,
        pattern=r"^/[^!]+$",
        description="The node, or the branch of a map, that runs again with all that depends on it: /extract, "
        "/extract[00003] or /extract[00003]/read.",
    )

    rules = (one_of("run", "uid"),)
    later: ClassVar[Mapping[str, str]] = {"uri": _ELSEWHERE}


class TaskGraphRunSpec(Model):
    """One execution. One of input and inputFrom, or none for a graph without input."""

    graph: ResourceName = Field(description="Name of the TaskGraph.")
    input: FreeObject | None = Field(
        None, description="The input: an object with the fields of the graph's input. Larger ones: inputFrom."
    )
    input_from: InputFrom | None = Field(None, description="A file that holds the input.")
    overrides: Overrides | None = Field(None, description="Replacements for this run.")
    pool: ResourceName | None = Field(None, description="Name of the WorkerPool. Default default.")
    priority: int | None = Field(
        None,
        ge=-1_000_000,
        le=1_000_000,
        description="Queued runs of higher priority start first. Default 0.",
    )
    cancel: CancelForm | None = Field(
        None,
        description="Ends the run: Cancel takes away what runs and starts nothing more; CancelAndFinally then runs the "
        "nodes of finally; Stop ends also these. It cannot be taken back, only raised to Stop.",
    )
    retry_from: RetryFrom | None = Field(
        None,
        description="A run of the same graph and input of which this one takes over what went well; what failed and "
        "what depends on it runs again.",
    )
    fork_from: ForkFrom | None = Field(
        None,
        description="A run of which this one takes over what still holds: all but a path, what depends on it, and "
        "what has another definition or input here.",
    )
    suspend: bool | None = Field(
        None,
        description="True: nothing new of the run starts, and what runs ends; it holds no place in its pool. False or "
        "absent: it goes on. Default false.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=315_360_000,
        description="Seconds after the end until the run is deleted; absent, it is kept. Its ledger is not.",
    )
    retention_seconds: int | None = Field(
        None,
        ge=-1,
        le=3_153_600_000,
        description="Seconds after the end for which the run's ledger is kept, whatever decurion ledger gc is told of "
        "others; -1 keeps it for good.",
    )

    rules = (
        one_of("input", "inputFrom", required=False),
        one_of("retryFrom", "forkFrom", required=False),
        *(
            _immutable(field)
            for field in (
                "graph",
                "input",
                "inputFrom",
                "overrides",
                "pool",
                "retryFrom",
                "forkFrom",
                "retentionSeconds",
            )
        ),
        Rule(
            cel="!has(oldSelf.cancel) || "
            "(has(self.cancel) && (self.cancel == oldSelf.cancel || self.cancel == 'Stop'))",
            message="cancel cannot be taken back, only raised to Stop; create another run",
            check=None,
            field=".cancel",
        ),
    )
    later: ClassVar[Mapping[str, str]] = {
        "serviceAccountName": "label the Secrets that the graph's models use",
        "conversation": "pass earlier turns by input",
    }


class NodeStatus(Model):
    """How far one node of the root graph is. Counters are those of a map's items; zero ones are left out."""

    name: Identifier = Field(description="Name of the node.")
    kind: str | None = Field(None, max_length=32, description="Kind of its block.")
    phase: NodePhase = Field(description="How far the node is.")
    total: int = Field(0, ge=0, description="Items in all.")
    running: int = Field(0, ge=0, description="Items in work.")
    waiting: int = Field(0, ge=0, description="Items that wait for people, and for nothing else.")
    succeeded: int = Field(0, ge=0, description="Items that succeeded.")
    failed: int = Field(0, ge=0, description="Items that failed.")
    skipped: int = Field(0, ge=0, description="Items that were skipped.")


class Failure(Model):
    """One thing that failed."""

    path: str = Field(max_length=1024, description="Path in the ledger, such as /extract[00017]/read.")
    class_: str = Field(max_length=64, description="Class of the error.")
    message: str = Field("", max_length=MAX_FAILURE_BYTES, description="What happened, cut to 256 bytes.")


class PendingApproval(Model):
    """One request that people have not decided yet."""

    node: str = Field(max_length=1024, description="Path of the node, such as /extract[00017]/review.")
    request: str = Field(max_length=64, description="Name of the request; an Approval repeats it.")
    digest: str = Field(max_length=64, description="Digest of what is shown; an Approval repeats it.")
    message: str = Field("", max_length=MAX_FAILURE_BYTES, description="What is asked, cut to 256 bytes.")
    due: str | None = Field(
        None, json_schema_extra={"format": "date-time"}, max_length=64, description="Time at which the wait is over."
    )


class RunLedger(Model):
    """Where the truth about the run is."""

    uri: str | None = Field(None, max_length=2048, description="URI of the ledger.")
    slot: int | None = Field(None, ge=0, description="Last durable slot of the log.")
    head: str | None = Field(None, max_length=64, description="Digest of that slot.")


class RunUsage(Model):
    """What the run has used so far."""

    calls: int = Field(0, ge=0, description="Calls of models.")
    input_tokens: int = Field(0, ge=0, description="Tokens sent to models.")
    output_tokens: int = Field(0, ge=0, description="Tokens received from models.")
    tool_calls: int = Field(0, ge=0, description="Calls of tools.")
    cost_usd: str | None = Field(
        None, alias="costUSD", max_length=32, description="Dollars, for the models that have a price."
    )


class RunLimits(Model):
    """What the run may use: the limits of its graph."""

    tokens: int | None = Field(None, ge=0, description="Most tokens, sent and received.")
    cost_usd: str | None = Field(None, alias="costUSD", max_length=32, description="Most dollars.")
    steps: int | None = Field(None, ge=0, description="Most answers of models.")
    tool_calls: int | None = Field(None, ge=0, description="Most calls of tools.")
    seconds: float | None = Field(None, ge=0, description="Longest time.")


class TaskGraphRunStatus(Model):
    """A projection of the ledger, never the truth."""

    observed_generation: int | None = Field(None, description="Generation of the spec that the status was made from.")
    phase: RunPhase | None = Field(None, description="Summary for people; programs read the conditions.")
    reason: str | None = Field(None, max_length=128, description="CamelCase word for why the phase is as it is.")
    message: str | None = Field(None, max_length=4096, description="The same for people.")
    conditions: Conditions = Field(
        default_factory=list,
        description="Completed (the run has ended), Succeeded (Unknown until then), Reconciling (until then), "
        "Stalled (the run failed).",
    )
    graph_digest: str | None = Field(None, max_length=64, description="Digest of the compiled graph that runs.")
    attempt: int | None = Field(None, ge=0, description="How often a driver took the run over, the first one included.")
    queued_at: str | None = Field(
        None,
        json_schema_extra={"format": "date-time"},
        max_length=64,
        description="Time at which the run was queued.",
    )
    started_at: str | None = Field(
        None,
        json_schema_extra={"format": "date-time"},
        max_length=64,
        description="Time at which the run started.",
    )
    finished_at: str | None = Field(
        None,
        json_schema_extra={"format": "date-time"},
        max_length=64,
        description="Time at which the run ended.",
    )
    progress: str | None = Field(
        None,
        max_length=64,
        description="Done and known steps, such as 1234/2000; the second grows as maps start.",
    )
    usage: RunUsage | None = Field(None, description="What the run has used so far.")
    limits: RunLimits | None = Field(None, description="What the run may use: the limits of its graph.")
    nodes: Annotated[list[NodeStatus], atomic(max_length=MAX_NODES + MAX_FINALS)] = Field(
        default_factory=list, description="One entry for each node of the root graph and of its finally."
    )
    failures: Annotated[list[Failure], atomic(max_length=MAX_FAILURES)] = Field(
        default_factory=list, description="The first failures; the ledger has all."
    )
    approvals: Annotated[list[PendingApproval], atomic(max_length=MAX_APPROVALS)] = Field(
        default_factory=list, description="The first requests that wait for people; the next follow as these go."
    )
    pending_approvals: int | None = Field(None, ge=0, description="How many requests wait for people.")
    next_wake_at: str | None = Field(
        None,
        json_schema_extra={"format": "date-time"},
        max_length=64,
        description="Time at which something happens by itself next: a wait or a time-out is over.",
    )
    ledger: RunLedger | None = Field(None, description="Where the truth about the run is.")
    output: Free = Field(
        None, description="The output, when it is at most 4 KiB of JSON; the ledger has it in any case."
    )
    state_hash: str | None = Field(None, max_length=64, description="Digest of the final state of the run.")


class TaskGraphRun(Resource):
    """One execution of a TaskGraph: start it with kubectl create, follow it with kubectl get tgr -w."""

    kind: Literal["TaskGraphRun"] = Field(description="Kind of the resource.")
    spec: TaskGraphRunSpec = Field(
        description="What is executed. Immutable but for priority, suspend, cancel and the TTL."
    )
    status: TaskGraphRunStatus | None = Field(None, description="How far the run is: a projection of its ledger.")

    plural: ClassVar[str] = "taskgraphruns"
    short_name: ClassVar[str] = "tgr"
    category: ClassVar[str] = "decurion-runs"
    columns = (
        ("Graph", ".spec.graph"),
        ("Phase", ".status.phase"),
        ("Progress", ".status.progress"),
        ("Reason", ".status.reason"),
    )
    wide_columns = (
        ("Pool", ".spec.pool"),
        ("Calls", ".status.usage.calls"),
        ("Message", ".status.message"),
    )
    selectable = (".spec.graph", ".spec.pool", ".status.phase")
