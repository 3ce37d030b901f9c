"""`decurion validate`: everything that is wrong with manifests, at once, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import orjson
import typer

from decurion_cli.exits import BAD_INPUT, exits
from decurion_crds.errors import InputError


def validate(
    files: Annotated[list[Path], typer.Argument(help="Files or folders of manifests.", metavar="FILE...")],
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are errors.")] = False,
    output: Annotated[
        Literal["text", "json"], typer.Option("--output", "-o", help="How findings are printed.")
    ] = "text",
) -> None:
    """Check manifests: 0 when they are right, 2 with every finding when they are not."""
    from decurion_cli.manifests import compile_all, read
    from decurion_cli.run_checks import run_findings
    from decurion_crds.loader import independent

    with exits():
        manifests = read(files)
        if not manifests.loaded.documents and not manifests.findings:
            raise InputError(
                f"{', '.join(map(str, files))}: no resource is in there; name files or folders of manifests"
            )
        findings = list(manifests.findings)
        broken = {f.file for f in findings if f.severity == "error"}
        results = compile_all(manifests) if manifests.graphs else {}
        runs = run_findings(manifests, results)
    for name, result in results.items():
        # A graph whose document does not parse is not among the results; one cause, one finding.
        findings.extend(f for f in independent(result.findings, manifests.findings) if f not in findings)
        if result.compiled is not None and output == "text" and manifests.graphs[name][0].file not in broken:
            typer.echo(f"TaskGraph {name}: ok, digest {result.compiled.digest[:16]}")
    findings.extend(runs)
    if output == "json":
        typer.echo(orjson.dumps([f.to_json() for f in findings], option=orjson.OPT_INDENT_2).decode())
    else:
        for finding in findings:
            mark = "" if finding.severity == "error" else "warning: "
            typer.echo(mark + finding.text(), err=True)
    if any(f.severity == "error" or strict for f in findings):
        raise typer.Exit(BAD_INPUT)
