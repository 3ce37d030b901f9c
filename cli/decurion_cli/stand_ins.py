"""Graphs of files that do not hold their models: compiled all the same, for what does not depend on a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from decurion_cli.manifests import Manifests, compile_all
from decurion_crds.compile import Compilation
from decurion_crds.v1alpha1 import API_VERSION, LLM


@dataclass(frozen=True, slots=True)
class Alone:
    """The graphs by their names. `guessed` are the models that are not among the files."""

    results: dict[str, Compilation]
    guessed: frozenset[str]


def compile_alone(manifests: Manifests, *, only: str | None = None) -> Alone:
    """Every graph of the files (or the one of that name). A model that is missing is no finding: another stands in."""
    results = compile_all(manifests, only=only, as_used=True)
    absent = {f.absent for r in results.values() for f in r.findings if (f.absent or "").startswith("LLM ")}
    guessed = frozenset(str(one).partition(" ")[2] for one in absent)
    if guessed:
        results = compile_all(manifests, only=only, stand_ins=_models(guessed), as_used=True)
    return Alone(results, guessed)


def _models(names: Iterable[str]) -> dict[str, LLM]:
    spec = {"protocol": "scripted", "scripted": {"default": ""}}
    head = {"apiVersion": API_VERSION, "kind": "LLM", "spec": spec}
    return {name: LLM.model_validate(head | {"metadata": {"name": name}}) for name in names}
