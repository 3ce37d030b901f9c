"""`decurion diff`: what changed between two versions of a graph."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer

from decurion_cli.exits import DIFFERENT, exits
from decurion_crds.findings import CompileFailed, listed

if TYPE_CHECKING:
    from decurion_crds.compiled import CompiledGraph
    from decurion_crds.difference import Difference

_SIGNS = {"added": "+", "removed": "-", "changed": "~", "moved": ">", "renamed": ">"}


@dataclass(frozen=True, slots=True)
class _Side:
    """The graphs of one side. `guessed` are the models that they name and that are not among the files."""

    graphs: dict[str, CompiledGraph]
    guessed: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class _GraphDiff:
    name: str
    change: Literal["added", "removed", "renamed", "changed"]
    source: str | None = None
    differences: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        head = {"graph": self.name, "change": self.change, **({"source": self.source} if self.source else {})}
        return head | {"differences": [one.to_json() for one in self.differences]}


def diff(
    old: Annotated[Path, typer.Argument(metavar="A", help="File or folder of manifests, the version before.")],
    new: Annotated[Path, typer.Argument(metavar="B", help="File or folder of manifests, the version after.")],
    graph: Annotated[str, typer.Option("--graph", help="Compare only the TaskGraph of this name.")] = "",
    uses: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", metavar="FILE", help="Manifests that both versions use, such as models. May be repeated."
        ),
    ] = None,
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Form of the answer.")] = "text",
) -> None:
    """Say what changed between two versions of a graph, in terms of nodes and their contracts.

    The compiled graphs are compared, so formatting, comments and defaults that are written out make no difference.
    Models that are not among the files are compared by their names alone. Exit code: 0 when both do the same, 1 when
    they differ, 2 when one of them is wrong.

    Example: git show HEAD:graph.yaml > before.yaml; decurion diff before.yaml graph.yaml
    """
    with exits():
        one, other = _side(old, uses or [], graph), _side(new, uses or [], graph)
    found = list(_compared(one, other, alone=bool(graph)))
    if output == "json":
        shown = {"same": not found, "graphs": [one.to_json() for one in found]}
        typer.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
    else:
        typer.echo("\n".join(_lines(found)) if found else "no difference")
    if found:
        raise typer.Exit(DIFFERENT)


def _side(path: Path, uses: list[Path], graph: str) -> _Side:
    """The compiled graphs of one side. Raises `CompileFailed`, `NoSuchGraph`."""
    from decurion_cli.manifests import NoSuchGraph, read
    from decurion_cli.stand_ins import compile_alone

    manifests = read([path])
    own = sorted(manifests.graphs)
    if not manifests.findings and (not own or (graph and graph not in own)):
        raise NoSuchGraph(graph, own)
    manifests = read([path, *uses]) if uses else manifests
    findings = [f for f in manifests.findings if f.severity == "error"]
    if findings:
        raise CompileFailed(findings)
    if not own:
        raise NoSuchGraph(graph, own)
    alone = compile_alone(manifests, only=graph or None)
    results = alone.results
    failed = [f for name in own for f in (results[name].findings if name in results else []) if f.severity == "error"]
    if failed:
        raise CompileFailed(failed)
    return _Side({name: results[name].result() for name in own if name in results}, alone.guessed)


def _compared(one: _Side, other: _Side, *, alone: bool) -> Iterator[_GraphDiff]:
    """The graphs that differ. `alone` says that the graphs that these run are not compared by themselves."""
    from decurion_crds.difference import differences

    def compare(old: CompiledGraph, new: CompiledGraph) -> tuple[Difference, ...]:
        known = (old.llms.keys() & new.llms.keys()) - one.guessed - other.guessed
        return tuple(differences(old, new, resources=known, graphs=alone))

    if len(one.graphs) == len(other.graphs) == 1 and one.graphs.keys() != other.graphs.keys():
        [(before, old)], [(after, new)] = one.graphs.items(), other.graphs.items()
        yield _GraphDiff(after, "renamed", before, compare(old, new))
        return
    for name in [*one.graphs, *(name for name in other.graphs if name not in one.graphs)]:
        if name not in other.graphs:
            yield _GraphDiff(name, "removed")
        elif name not in one.graphs:
            yield _GraphDiff(name, "added")
        elif found := compare(one.graphs[name], other.graphs[name]):
            yield _GraphDiff(name, "changed", differences=found)


def _lines(found: Iterable[_GraphDiff]) -> Iterator[str]:
    for graph in found:
        was = f", renamed from {graph.source}" if graph.source else ""
        yield f"{_SIGNS[graph.change]} TaskGraph {graph.name}{was}"
        scopes: dict[str, list[Difference]] = {}
        for one in graph.differences:
            scopes.setdefault(one.scope, []).append(one)
        for scope, ones in scopes.items():
            yield f"  {scope}"
            for one in ones:
                yield from _difference(one)


def _difference(one: Difference) -> Iterator[str]:
    name = one.name if one.name == one.what else f"{one.what} {one.name}{f' ({one.kind})' if one.kind else ''}"
    what = {"moved": f"moved from {one.source}" if one.edits or not _order(one) else f"moved {one.source}"}
    said = what.get(one.change, f"renamed from {one.source}" if one.change == "renamed" else "")
    parts = listed(one.parts) if one.parts != ("block",) else "block only"
    about = "; ".join(part for part in (said, parts if one.parts else "") if part)
    yield f"    {_SIGNS[one.change]} {name}{f': {about}' if about else ''}"
    for edit in one.edits:
        if edit.part == "order":
            yield f"        no longer after {edit.old}" if edit.new is None else f"        now after {edit.new}"
        else:
            yield from _edit(edit.field, edit.old, edit.new)


def _order(one: Difference) -> bool:
    return one.source is not None and (one.source.startswith("behind ") or one.source.startswith("to the "))


def _edit(name: str, old: str | None, new: str | None) -> Iterator[str]:
    if old is None or new is None:
        sign, text = ("+", new) if old is None else ("-", old)
        yield from _block(f"        {sign} {name}: ", str(text))
    elif "\n" in old or "\n" in new:
        yield f"        {name}:"
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2)
        yield from (f"          {line}" for line in lines if not line.startswith(("---", "+++", "@@")))
    else:
        yield f"        {name}: {old} → {new}"


def _block(head: str, text: str) -> Iterator[str]:
    first, *rest = text.split("\n")
    yield head + first
    yield from (f"{' ' * len(head)}{line}" for line in rest)
