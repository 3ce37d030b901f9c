"""How many of the ended runs of a graph are kept as resources on a cluster."""

from __future__ import annotations

from pydantic import Field

from decurion_crds.v1alpha1.base import Model

MAX_HISTORY = 100_000


class History(Model):
    """Most ended runs that are kept. The oldest beyond that are deleted; their ledgers stay."""

    succeeded: int | None = Field(
        None, ge=0, le=MAX_HISTORY, description="Most runs kept that have succeeded. Absent, all are kept."
    )
    failed: int | None = Field(
        None, ge=0, le=MAX_HISTORY, description="Most runs kept that failed or were cancelled. Absent, all are kept."
    )
