"""`decurion diff`: what changed between two versions of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import orjson
import typer

from decurion_cli.exits import RUN_FAILED, exits

_SIGNS = {"added": "+", "removed": "-", "moved": ">"}


def diff(
    one: Annotated[Path, typer.Argument(help="File or folder of the one version.", metavar="A")],
    other: Annotated[Path, typer.Argument(help="File or folder of the other.", metavar="B")],
    graph: Annotated[str, typer.Option("--graph", help="The TaskGraph, where the files hold several.")] = "",
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Form of the answer.")] = "text",
) -> None:
    """Say what differs between two versions of a graph: nodes, contracts, blocks, schemas, order; not the spelling.

    Exit codes: 0 no difference, 1 some, 2 a version is no graph that compiles.
    """
    from decurion_cli.manifests import compiled
    from decurion_crds.differences import differences

    with exits():
        before, after = (compiled([file], graph, use_run=False)[1] for file in (one, other))
    found = differences(before, after)
    if output == "json":
        typer.echo(orjson.dumps([d.to_json() for d in found], option=orjson.OPT_INDENT_2).decode())
    else:
        for d in found:
            typer.echo(
                f"{_SIGNS.get(d.sort, '~')} {d.path}: {d.message}{' (contract)' if d.sort == 'contract' else ''}"
            )
    if found:
        raise typer.Exit(RUN_FAILED)
