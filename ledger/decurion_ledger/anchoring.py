"""Anchors: signed checkpoints of logs in a second store, so that a log that was cut or put back is found.

The chain of a log shows every change of what is there, and not that its newest slots are gone. An anchor says how
long a log was at some time, and what it was. Keep them where nobody who may write to the ledger may delete.

    anchors/<hh>/<run>/<slots:012d>     canonical JSON {checkpoint, key, signature}; <hh> as of the run's own objects

The signature is over the checkpoint's canonical bytes under the domain checkpoint/v0.
"""

from __future__ import annotations

from collections.abc import Sequence

from decurion_crds.canonical import Json, canonical
from decurion_ledger.layout import run_prefix
from decurion_ledger.signing import SigningKey
from decurion_ledger.stores.port import Put, Store
from decurion_ledger.verifier import Anchors, Report, examine

CHECKPOINT = "checkpoint/v0"
PREFIX = "anchors/"


def anchor_key(run: str, slots: int) -> str:
    return f"{PREFIX}{run_prefix(run).removeprefix('runs/')}{slots:012d}"


def checkpoint(run: str, report: Report, *, at: str) -> dict[str, Json]:
    """What an anchor says of a log of `slots` segments. `at` is RFC 3339."""
    return {
        "format": 1,
        "run": run,
        "slots": report.slots,
        "head": report.head,
        "root": report.root,
        "closed": report.closed,
        "at": at,
    }


async def anchor(
    store: Store, run: str, anchors: Store, *, key: SigningKey, at: str, roots: Sequence[str] = ()
) -> tuple[Report, bool]:
    """Verify the log of `run`, also against its earlier anchors, and anchor what it is now; whether that was new.

    Nothing is written of a log with a problem. `key` must be that of the earlier anchors. Raises as `examine`.
    """
    report = await examine(store, run, roots=roots, anchors=Anchors(anchors, (key.public,)))
    if report.problems:
        return report, False
    said = checkpoint(run, report, at=at)
    signature = key.sign(CHECKPOINT, canonical(said)).hex()
    data = canonical({"checkpoint": said, "key": key.public, "signature": signature})
    return report, await anchors.put_new(anchor_key(run, report.slots), data) is Put.CREATED


async def anchored_runs(anchors: Store) -> list[str]:
    """The runs with an anchor, sorted."""
    return sorted({info.key.split("/")[2] async for info in anchors.list(PREFIX) if info.key.count("/") == 3})
