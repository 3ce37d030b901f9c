"""From files on the command line to one compiled graph: what `validate`, `run` and `graph show` have in common."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import typer

from decurion_crds.compile import Checker, Compilation, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.errors import DecurionError, InputError
from decurion_crds.findings import CompileFailed, Finding
from decurion_crds.loader import Document, Loaded, load
from decurion_crds.v1alpha1 import LLM, TaskGraph, TaskGraphRun
from decurion_worker.context import secret_refs


class NoSuchGraph(InputError):
    def __init__(self, wanted: str, known: Sequence[str]) -> None:
        if not known:
            super().__init__("the files hold no TaskGraph: name a file or folder that has one")
        elif wanted:
            super().__init__(f"--graph {wanted}: there is no TaskGraph of this name, the files hold {', '.join(known)}")
        else:
            super().__init__(f"the files hold several TaskGraphs ({', '.join(known)}): choose one with --graph NAME")


class SecretNotFound(DecurionError):
    def __init__(self, name: str, key: str) -> None:
        super().__init__(
            f"secret {name}, key {key}, is not to be found: set {secret_variable(name, key)} "
            "or add a Secret manifest to the files"
        )


@dataclass(frozen=True, slots=True)
class Manifests:
    """The documents of a call, parsed. `findings` are those of reading and parsing."""

    loaded: Loaded
    graphs: dict[str, tuple[Document, TaskGraph]]
    llms: dict[str, LLM]
    runs: list[tuple[Document, TaskGraphRun]]
    secrets: dict[tuple[str, str], str] = field(repr=False)
    findings: list[Finding]

    def run_of(self, graph: str) -> tuple[Document, TaskGraphRun] | None:
        """The run of a graph among the files. Raises `InputError` when there are several."""
        runs = [(document, run) for document, run in self.runs if run.spec.graph == graph]
        if len(runs) > 1:
            names = ", ".join(run.metadata.name or "" for _, run in runs)
            raise InputError(f"the files hold several runs of {graph} ({names}): keep one, or give --input")
        return runs[0] if runs else None


def read(files: Sequence[Path]) -> Manifests:
    """Load and parse `files` (files or folders). Faults are findings, all of them at once."""
    loaded = load(files)
    findings = list(loaded.findings)
    graphs: dict[str, tuple[Document, TaskGraph]] = {}
    llms: dict[str, LLM] = {}
    runs: list[tuple[Document, TaskGraphRun]] = []
    secrets: dict[tuple[str, str], str] = {}
    for document in loaded.documents:
        if document.kind == "Secret":
            secrets.update(_secret(document))
        if not document.ours:
            continue
        model, faults = document.parse()
        findings.extend(faults)
        match model:
            case TaskGraph():
                graphs[document.name] = (document, model)
            case LLM():
                llms[document.name] = model
            case TaskGraphRun():
                runs.append((document, model))
    return Manifests(loaded, graphs, llms, runs, secrets, findings)


def compile_all(manifests: Manifests, *, bind: Mapping[str, str] | None = None) -> dict[str, Compilation]:
    """Every graph of the files, compiled with the LLMs of the files; `bind` puts one LLM in another's place."""
    llms = dict(manifests.llms)
    for name, other in (bind or {}).items():
        if other not in manifests.llms:
            raise InputError(f"{name}={other}: there is no LLM named {other} among the files; add its manifest")
        llms[name] = manifests.llms[other]
    with Checker() as checker:
        return {
            name: compile_graph(graph, llms=llms, positions=document.locate, checker=checker)
            for name, (document, graph) in manifests.graphs.items()
        }


def compiled(
    files: Sequence[Path], graph: str, *, bind: Mapping[str, str] | None = None
) -> tuple[Manifests, CompiledGraph]:
    """The one graph of the files (or the one named `graph`), with the overrides of its run, and `bind` over these.

    Raises `CompileFailed`, `NoSuchGraph`.
    """
    manifests = read(files)
    errors = [f for f in manifests.findings if f.severity == "error"]
    if errors:
        raise CompileFailed(errors)
    known = sorted(manifests.graphs)
    chosen = graph or (known[0] if len(known) == 1 else "")
    if chosen not in manifests.graphs:
        raise NoSuchGraph(graph, known)
    run = manifests.run_of(chosen)
    overrides = dict(run[1].spec.overrides.llms) if run is not None and run[1].spec.overrides else {}
    only = replace(manifests, graphs={chosen: manifests.graphs[chosen]}, findings=[])
    result = compile_all(only, bind={**overrides, **(bind or {})})[chosen]
    show_warnings(manifests.findings + result.findings)
    if result.compiled is None:
        raise CompileFailed([f for f in result.findings if f.severity == "error"])
    return manifests, result.compiled


def show_warnings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.severity == "warning":
            typer.echo(f"warning: {finding.text()}", err=True)


def secrets_for(graph: CompiledGraph, known: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Secrets that the graph's models name, from variables, else from `known`. Raises `SecretNotFound`."""
    found = {}
    for name, key in sorted(secret_refs(graph)):
        value = os.environ.get(secret_variable(name, key), known.get((name, key)))
        if value is None:
            raise SecretNotFound(name, key)
        found[(name, key)] = value
    return found


def secret_variable(name: str, key: str) -> str:
    return "DECURION_SECRET_" + "_".join(
        "".join(c if c.isalnum() else "_" for c in part).upper() for part in (name, key)
    )


def _secret(document: Document) -> dict[tuple[str, str], str]:
    """Values of a Secret manifest by (name, key). Raises `InputError` for what no API server would take."""
    values: dict[tuple[str, str], str] = {}
    data, plain = document.raw.get("data") or {}, document.raw.get("stringData") or {}
    for field_name, texts in (("data", data), ("stringData", plain)):
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise InputError(f"{document.file}: {field_name} of Secret {document.name} must map keys to texts")
    for key, text in data.items():
        try:
            values[(document.name, key)] = base64.b64decode(text, validate=True).decode()
        except ValueError as error:
            message = f"{document.file}: data.{key} of Secret {document.name} is no base64 of a text; use stringData"
            raise InputError(message) from error
    return values | {(document.name, key): text for key, text in plain.items()}


__all__ = ["Manifests", "compile_all", "compiled", "read", "secrets_for", "show_warnings"]
