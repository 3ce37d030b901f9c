"""What is wrong with runs, seen beside their graphs: what `run` would refuse, or silently not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from decurion_cli.bound import bound_in
from decurion_cli.manifests import Manifests
from decurion_cli.value_files import steps_of
from decurion_crds.compile import Compilation
from decurion_crds.compiled import CompiledGraph
from decurion_crds.findings import Finding, did_you_mean
from decurion_crds.loader import Document
from decurion_crds.v1alpha1 import Place, TaskGraph, TaskGraphRun
from decurion_worker.errors import BadInput
from decurion_worker.opening import check_input


def run_findings(manifests: Manifests, results: Mapping[str, Compilation]) -> list[Finding]:
    """Findings of every run whose graph is among the files; a warning where it is not, which a cluster may know."""
    found: list[Finding] = []
    for document, run in manifests.runs:
        result = results.get(run.spec.graph)
        if result is None:
            if manifests.graphs:
                found.append(_no_graph(document, run, sorted(manifests.graphs)))
        elif result.compiled is not None:
            found.extend(_unbound(manifests, document, run))
            found.extend(_overrides(document, run, result.compiled))
            found.extend(_input(document, run, result.compiled))
            found.extend(_in_clear(document, run, manifests.graphs[run.spec.graph][1]))
    return found


def strangers(manifests: Manifests) -> list[Finding]:
    """A warning for each run whose graph is not among the files: nothing of it is used."""
    known = sorted(manifests.graphs)
    return [_no_graph(document, run, known) for document, run in manifests.runs if run.spec.graph not in known]


def _no_graph(document: Document, run: TaskGraphRun, known: list[str]) -> Finding:
    meant = did_you_mean(run.spec.graph, known)
    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known)}"
    message = f"there is no graph {run.spec.graph} among these files; {hint}"
    return _at(document, ("spec", "graph"), "graph", "REF-MISSING", message, severity="warning")


def _unbound(manifests: Manifests, document: Document, run: TaskGraphRun) -> Iterator[Finding]:
    """Needs of the graph that stand for nothing in this run, though others bind them."""
    owner, graph = manifests.graphs[run.spec.graph]
    swaps = run.spec.overrides.by_kind if run.spec.overrides is not None else {}
    for kind, bound in bound_in(manifests, owner).items():
        for need in (need for need in bound if need not in swaps.get(kind, {})):
            field = "llms" if kind == "LLM" else "servers"
            message = (
                f"the graph {graph.name} needs the {kind} {need}, and there is none of that name; bind one, as in "
                f"overrides: {{{field}: {{{need}: NAME}}}}"
            )
            yield _at(document, ("spec", "graph"), "graph", "REF-MISSING", message)


def _overrides(document: Document, run: TaskGraphRun, graph: CompiledGraph) -> Iterator[Finding]:
    given = run.spec.overrides
    rows = (
        [("LLM", "llms", given.llms, graph.llms), ("MCPServer", "servers", given.servers, graph.servers)]
        if given
        else []
    )
    for kind, field, swaps, used in rows:
        for name in (name for name in swaps if name not in used):
            meant = did_you_mean(name, used)
            hint = f"did you mean {meant}?" if meant else f"it uses {', '.join(sorted(used)) or 'none'}"
            message = f"the graph {graph.name} uses no {kind} {name}; {hint}"
            place = ("spec", "overrides", field, name)
            yield _at(document, place, f"overrides.{field}.{name}", "REF-MISSING", message)


def _input(document: Document, run: TaskGraphRun, graph: CompiledGraph) -> Iterator[Finding]:
    spec = run.spec
    if spec.input_from is not None or (spec.input is None and (spec.retry_from or spec.fork_from)):
        return
    try:
        check_input(graph, run.spec.input or {})
    except BadInput as error:
        yield from input_findings(error, lambda steps: document.locate(("spec", "input", *steps)))


def _in_clear(document: Document, run: TaskGraphRun, graph: TaskGraph) -> Iterator[Finding]:
    """A warning for each sensitive input that stands in the resource."""
    for name in graph.spec.sensitive:
        if name in (run.spec.input or {}):
            message = (
                f"{name} is sensitive, and in a TaskGraphRun it is in clear for all who may read that; put the input "
                "into a file of the store, and name it by inputFrom"
            )
            yield _at(document, ("spec", "input", name), f"input.{name}", "SENSITIVE", message, severity="warning")


def input_findings(error: BadInput, locate: Callable[[Place], tuple[str, int, int]]) -> Iterator[Finding]:
    """A finding for each fault of an input; `locate` says where the value at some steps into it was written."""
    for fault in error.findings:
        path, _, message = fault.partition(": ")
        file, line, column = locate(steps_of(path)[1:])
        text = f"{message}; correct the input of the run"
        yield Finding("INPUT", path, text, file=file, line=line, column=column)


def _at(
    document: Document, place: tuple[str | int, ...], path: str, code: str, message: str, *, severity: str = "error"
) -> Finding:
    file, line, column = document.locate(place)
    return Finding(
        code,
        path,
        message,
        severity="warning" if severity == "warning" else "error",
        file=file,
        line=line,
        column=column,
    )
