"""`decurion validate`: everything that is wrong with manifests, at once, without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import orjson
import typer

from decurion_cli.exits import BAD_INPUT, exits
from decurion_crds.errors import InputError
from decurion_crds.v1alpha1 import KINDS

if TYPE_CHECKING:
    from decurion_cli.checking import Checked
    from decurion_cli.manifests import Manifests


def validate(
    files: Annotated[list[Path], typer.Argument(help="Files or folders of manifests.", metavar="FILE...")],
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are errors.")] = False,
    output: Annotated[
        Literal["text", "json"], typer.Option("--output", "-o", help="How findings are printed.")
    ] = "text",
) -> None:
    """Check manifests: 0 when they are right, 2 with every finding when they are not."""
    from decurion_cli.checking import check
    from decurion_cli.manifests import read

    with exits():
        manifests = read(files)
        if not manifests.loaded.documents and not manifests.findings:
            raise InputError(
                f"{', '.join(map(str, files))}: no resource is in there; name files or folders of manifests"
            )
        checked = check(manifests)
    findings = checked.findings
    if output == "text":
        for line in _right(manifests, checked):
            typer.echo(line)
    if output == "json":
        typer.echo(orjson.dumps([f.to_json() for f in findings], option=orjson.OPT_INDENT_2).decode())
    else:
        for finding in findings:
            mark = "" if finding.severity == "error" else "warning: "
            typer.echo(mark + finding.text(), err=True)
    if any(f.severity == "error" or strict for f in findings):
        raise typer.Exit(BAD_INPUT)


def _right(manifests: Manifests, checked: Checked) -> Iterator[str]:
    """One line for each graph in a file without errors, with its digest; without graphs, for each resource."""
    from decurion_cli.bound import bound_in

    broken = {f.file for f in checked.findings if f.severity == "error"}
    for name, (document, graph) in manifests.graphs.items():
        compiled, needs = checked.results[name].compiled, graph.spec.needs
        if compiled is not None and document.file not in broken:
            bound = [pair for kind in bound_in(manifests, document).values() for pair in kind.items()] if needs else []
            given = f" with {', '.join(f'{need}={to}' for need, to in sorted(bound))}" if bound else ""
            yield f"TaskGraph {name}: ok, digest {compiled.digest[:16]}{given}"
    for document in manifests.loaded.documents if not manifests.graphs else ():
        if document.ours and document.kind in KINDS and document.file not in broken:
            yield f"{document.kind} {document.name}: ok"
