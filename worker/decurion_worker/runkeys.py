"""The keys of runs with sensitive values, for whoever opens them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Seal, SealKey, Store, key_of
from decurion_ledger.errors import WrongSealKey
from decurion_ledger.patience import Patience

GiveSealKey = Callable[[bool], SealKey]
"""Gives a seal key; told whether it may be made, for a run that begins."""


@dataclass(frozen=True, slots=True)
class RunKeys:
    """`by` gives the key with which they are encrypted, and makes it where it may; None where nobody gave one."""

    by: GiveSealKey | None = None

    def needed(self, run: str, *, make: bool = False) -> SealKey:
        """Raises `WrongSealKey` where there is none."""
        if self.by is None:
            raise WrongSealKey(
                f"run {run} has sensitive values, and no seal key is given, with which its own is encrypted; give one "
                "(on a laptop --seal-key, on a cluster the operator has it)"
            )
        return self.by(make)

    async def of(self, store: Store, run: str, graph: CompiledGraph, *, patience: Patience) -> Seal | None:
        """The key of a run of `graph`; None where nothing of it is sensitive. Raises as `key_of` and `needed`."""
        if not graph.sealed:
            return None
        return await key_of(store, run, self.needed(run), patience=patience)
