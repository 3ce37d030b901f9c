"""`WorkerPool`: where runs execute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from decurion_crds.v1alpha1.base import Auth, Conditions, Model, Resource, Rule


class PoolLedger(Model):
    """Where the pool keeps its ledgers."""

    uri: str = Field(
        max_length=2048,
        pattern=r"^(s3|file|memory)://[^\s]+$",
        description="Store of the ledgers, such as s3://bucket/prefix. For an External pool this is information for "
        "readers: "
        "the pool itself was started with it.",
    )

    later: ClassVar[Mapping[str, str]] = {
        "credentials": "give the workers their credentials by their environment",
        "endpointURL": "give the workers AWS_ENDPOINT_URL_S3",
        "region": "give the workers AWS_REGION",
    }


class PoolRunners(Model):
    """The processes that execute nodes and branches."""

    min: int | None = Field(None, ge=0, le=10_000, description="Fewest runners.")
    max: int | None = Field(None, ge=1, le=10_000, description="Most runners.")
    branches_per_runner: int | None = Field(
        None, ge=1, le=10_000, description="Branches of maps that one runner holds at a time."
    )

    rules = (
        Rule(
            cel="!has(self.min) || !has(self.max) || self.min <= self.max",
            message="min must not exceed max",
            check=lambda runners: runners.min is None or runners.max is None or runners.min <= runners.max,
        ),
    )


class WorkerPoolSpec(Model):
    """A place where runs execute."""

    mode: Literal["External"] = Field(
        description="Who starts the workers: External, somebody else did, with decurion worker serve."
    )
    url: str = Field(
        max_length=2048,
        pattern=r"^https?://[^\s]+$",
        description="Base URL of the pool's own HTTP interface.",
    )
    auth: Auth | None = Field(None, description="The token for the interface; absent, none is sent.")
    ledger: PoolLedger | None = Field(None, description="Where the pool keeps its ledgers.")
    runners: PoolRunners | None = Field(
        None, description="The processes that execute nodes; for an External pool, information about it."
    )
    max_running: int | None = Field(
        None, ge=1, le=100_000, description="Most runs at a time; further ones are Queued. Absent, no limit."
    )
    allowed_namespaces: Literal["Same"] = Field(
        "Same", description="Namespaces whose runs may use the pool: Same, only its own. Default Same."
    )

    kubernetes: ClassVar[Mapping[str, Any]] = {"x-kubernetes-map-type": "atomic"}
    later: ClassVar[Mapping[str, str]] = {"isolation": "remove it; a pool serves its own namespace"}


class WorkerPoolStatus(Model):
    """What the operator knows of the pool."""

    observed_generation: int | None = Field(None, description="Generation of the spec that the status was made from.")
    conditions: Conditions = Field(default_factory=list, description="Ready: the pool answers and accepts its token.")
    running: int | None = Field(None, ge=0, description="Runs that execute on the pool.")
    queued: int | None = Field(None, ge=0, description="Runs that wait for a place on the pool.")


class WorkerPool(Resource):
    """A place where runs execute: its address, token, ledger and limits."""

    kind: Literal["WorkerPool"] = Field(description="Kind of the resource.")
    spec: WorkerPoolSpec = Field(description="The pool.")
    status: WorkerPoolStatus | None = Field(None, description="What the operator knows of the pool.")

    plural: ClassVar[str] = "workerpools"
    short_name: ClassVar[str] = "tgw"
    columns = (
        ("Mode", ".spec.mode"),
        ("Running", ".status.running"),
        ("Queued", ".status.queued"),
        ("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        ("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
    )
    wide_columns = (("URL", ".spec.url"),)
