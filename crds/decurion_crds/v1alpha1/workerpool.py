"""`WorkerPool`: where runs execute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from decurion_crds.v1alpha1.base import Auth, Conditions, Model, Resource, ResourceName, Rule


class SecretRef(Model):
    """A whole Secret of the same namespace."""

    name: ResourceName = Field(description="Name of the Secret.")


class LedgerCredentials(Model):
    """Where the keys of the store's account are."""

    secret_ref: SecretRef = Field(
        description="The Secret with entries AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, where needed, "
        "AWS_SESSION_TOKEN; it must be labelled decurion.dev/use=true."
    )


class PoolLedger(Model):
    """Where the pool keeps its ledgers."""

    uri: str = Field(
        max_length=2048,
        pattern=r"^(s3|file|memory)://[^\s]+$",
        description="Store of the ledgers, such as s3://bucket/prefix; for a Local pool also file:///folder. For an "
        "External pool this is information for readers: the pool itself was started with it.",
    )
    credentials: LedgerCredentials | None = Field(
        None, description="The keys for an s3:// ledger of a Local pool; absent, the store is asked without a key."
    )
    endpoint_url: str | None = Field(
        None,
        alias="endpointURL",
        max_length=2048,
        pattern=r"^https?://[^\s]+$",
        description="Address of the S3-compatible service of a Local pool's ledger; absent, that of AWS.",
    )
    region: str | None = Field(
        None, max_length=64, pattern=r"^[-a-zA-Z0-9]+$", description="Region of a Local pool's s3:// ledger."
    )
    addressing: Literal["path", "virtual", "auto"] | None = Field(
        None,
        description="How the bucket of a Local pool's ledger is named: path, in the path, as most stores want that are "
        "not AWS; virtual, in the host name; auto, as the client library thinks fit. Absent: path with an endpointURL, "
        "else auto.",
    )
    checksum: Literal["sha256", "md5", "none"] | None = Field(
        None,
        description="With which checksum the bodies of a Local pool's s3:// ledger are sent: sha256 (default), md5 or "
        "none, for stores that do not know the others.",
    )
    ca_bundle: str | None = Field(
        None,
        max_length=65_536,
        pattern=r"^\s*-----BEGIN CERTIFICATE-----\s",
        description="Certificates, as PEM, of who may vouch for the store of a Local pool's ledger; absent, those "
        "that the system trusts.",
    )


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
            message="min must not exceed max; lower min, or raise max",
            check=lambda runners: runners.min is None or runners.max is None or runners.min <= runners.max,
        ),
    )


class WorkerPoolSpec(Model):
    """A place where runs execute."""

    mode: Literal["External", "Local"] = Field(
        description="Who starts the workers. External: somebody else did, with decurion worker serve. Local: the "
        "operator does, in one process beside it, for small clusters and trials."
    )
    url: str | None = Field(
        None,
        max_length=2048,
        pattern=r"^https?://[^\s]+$",
        description="Base URL of an External pool's HTTP interface.",
    )
    auth: Auth | None = Field(None, description="The token for an External pool's interface; absent, none is sent.")
    ledger: PoolLedger | None = Field(None, description="Where the pool keeps its ledgers; a Local pool needs it.")
    runners: PoolRunners | None = Field(
        None,
        description="What executes nodes: runners in the process of a Local pool; for an External pool, information "
        "about it.",
    )
    max_running: int | None = Field(
        None, ge=1, le=100_000, description="Most runs at a time; further ones are Queued. Absent, no limit."
    )
    allowed_namespaces: Literal["Same"] = Field(
        "Same", description="Namespaces whose runs may use the pool: Same, only its own. Default Same."
    )

    kubernetes: ClassVar[Mapping[str, Any]] = {"x-kubernetes-map-type": "atomic"}
    later: ClassVar[Mapping[str, str]] = {"isolation": "remove it; a pool serves its own namespace"}
    rules = (
        Rule(
            cel="self.mode != 'External' || has(self.url)",
            message="an External pool needs url, the address that its decurion worker serve printed",
            check=lambda pool: pool.mode != "External" or pool.url is not None,
        ),
        Rule(
            cel="self.mode != 'Local' || (!has(self.url) && !has(self.auth))",
            message="a Local pool has neither url nor auth: the operator starts it and knows its address",
            check=lambda pool: pool.mode != "Local" or (pool.url is None and pool.auth is None),
        ),
        Rule(
            cel="self.mode != 'Local' || (has(self.ledger) && !self.ledger.uri.startsWith('memory:'))",
            message="a Local pool needs a ledger that outlives its process: set ledger.uri to s3://… or file:///…",
            check=lambda pool: pool.mode != "Local" or _outlives(pool.ledger),
        ),
        Rule(
            cel="self.mode != 'External' || !has(self.ledger) || (!has(self.ledger.credentials) && "
            "!has(self.ledger.endpointURL) && !has(self.ledger.region) && !has(self.ledger.addressing) && "
            "!has(self.ledger.checksum) && !has(self.ledger.caBundle))",
            message="credentials, endpointURL, region, addressing, checksum and caBundle of the ledger are for Local "
            "pools: give the workers of an External pool AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL_S3 and AWS_REGION by "
            "their environment",
            check=lambda pool: pool.mode != "External" or _only_informs(pool.ledger),
        ),
        Rule(
            cel="self.mode == oldSelf.mode",
            message="mode cannot be changed: create another pool",
            check=None,
            field=".mode",
        ),
        Rule(
            cel="self.mode != 'Local' || !has(oldSelf.ledger) || !has(self.ledger) || "
            "self.ledger.uri == oldSelf.ledger.uri",
            message="the ledger of a Local pool cannot be moved, its runs are there: create another pool",
            check=None,
            field=".ledger",
        ),
    )


def _outlives(ledger: PoolLedger | None) -> bool:
    return ledger is not None and not ledger.uri.startswith("memory:")


def _only_informs(ledger: PoolLedger | None) -> bool:
    return ledger is None or ledger.model_fields_set <= {"uri"}


class WorkerPoolStatus(Model):
    """What the operator knows of the pool."""

    observed_generation: int | None = Field(None, description="Generation of the spec that the status was made from.")
    conditions: Conditions = Field(default_factory=list, description="Ready: the pool answers, and accepts its token.")
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
