"""The final state hash: one number that is equal iff two runs came to the same results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from decurion_crds.canonical import canonical, digest, merkle_root
from decurion_ledger.errors import DuplicatePath


def final_state_hash(cores: Iterable[tuple[str, str]], channels: Mapping[str, str], output: str | None) -> str:
    """The hash, in hex, over the (path, core hash) of all results, the value hashes of the root's channels,
    and that of the run's output.

    Results enter as a Merkle root (domain `cores/v0`) in order of their paths, whatever order they are given
    in. Raises `DuplicatePath`.
    """
    ordered = sorted(cores)
    for (one, _), (other, _) in pairwise(ordered):
        if one == other:
            raise DuplicatePath(one)
    root = merkle_root("cores/v0", [canonical([path, core]) for path, core in ordered])
    return digest("state/v0", canonical({"channels": dict(channels), "cores": root, "output": output}))
