"""Where things lie under a store's root. Keys are relative, with `/` between segments; `<hh>` spreads runs
over prefixes.
"""

from __future__ import annotations

import hashlib
import re

from decurion_ledger.errors import BadRunId

RUNS = "runs/"
BLOBS = "blobs/"
CHECKS = "checks/"
"""Where checks of the store write, and delete what they wrote."""
FORMAT = "FORMAT"
"""The object that says which format the ledger has; writing it again shows that the store keeps conditions."""
KEYS = "keys/"
"""The keys of runs with sensitive values, which can be destroyed."""
GC = "gc/"
"""What the collection of old runs remembers."""
SWEEPS = "gc/sweeps/"
"""Blobs that are being deleted, and until when."""
TOMBS = "gc/runs/"
MAX_SLOT = 999_999_999_999

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def run_prefix(run: str) -> str:
    """`runs/<hh>/<run>/`, where `<hh>` is the first byte of SHA-256(run). Raises `BadRunId`."""
    if not _RUN.fullmatch(run):
        raise BadRunId(
            run,
            "a run id has 1 to 128 letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    return f"{RUNS}{hashlib.sha256(run.encode()).hexdigest()[:2]}/{run}/"


def slot_key(run: str, slot: int) -> str:
    return f"{run_prefix(run)}log/{slot:012d}"


def final_key(run: str) -> str:
    return f"{run_prefix(run)}final"


def receipt_key(run: str, lease: str, effect: str) -> str:
    """Where the holder of a lease leaves what came of an effect that it could not settle."""
    return f"{run_prefix(run)}receipts/{lease}/{effect}"


def provenance_key(run: str) -> str:
    return f"{run_prefix(run)}provenance"


def blob_key(sha256: str) -> str:
    return f"{BLOBS}{sha256[:2]}/{sha256}"


def pack_prefix(run: str) -> str:
    """Where the packs of a run's workspaces lie: they are kept, copied and removed with the run."""
    return f"{run_prefix(run)}packs/"


def pack_key(run: str, pack: str) -> str:
    return pack_prefix(run) + pack


def tomb_key(run: str) -> str:
    """The object that says that the run is deleted, or about to be. It stays for good: a slot that was cleared could be
    taken again by a driver that slept through it.
    """
    run_prefix(run)
    return f"{TOMBS}{run}"


def tail_key(run: str) -> str:
    """How far the index of a run's log goes; advisory."""
    return f"{run_prefix(run)}tail"


def index_key(run: str, first: int, end: int) -> str:
    """The index of the slots from `first` up to `end`."""
    return f"{run_prefix(run)}index/{first:012d}-{end:012d}"


def needs_key(run: str) -> str:
    """Which blobs a closed run needs; derived from its log."""
    return f"{run_prefix(run)}needs"


def is_derived(key: str) -> bool:
    """Whether an object of a run is made from others, and may be made anew."""
    name = key.split("/", 3)[-1]
    return name in ("tail", "needs") or name.startswith("index/")


def run_of(key: str) -> str | None:
    """The run id in a key under `runs/`; None for keys that belong to no run."""
    parts = key.split("/")
    return parts[2] if len(parts) > 3 and parts[0] == "runs" else None
