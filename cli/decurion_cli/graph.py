"""`decurion graph`: what a graph looks like to the engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import orjson
import typer

from decurion_cli.exits import exits
from decurion_crds.errors import InputError

if TYPE_CHECKING:
    from decurion_crds.compiled import CompiledGraph
    from decurion_crds.v1alpha1 import TaskGraph

app = typer.Typer(no_args_is_help=True, help="Look at graphs.")


@app.callback()
def graph_commands() -> None:
    """Look at graphs."""


@app.command("show")
def show(
    files: Annotated[list[Path], typer.Argument(help="Files or folders of manifests.", metavar="FILE...")],
    graph: Annotated[str, typer.Option("--graph", help="The TaskGraph to show, where the files hold several.")] = "",
    output: Annotated[
        Literal["text", "mermaid", "json", "yaml"],
        typer.Option("--output", "-o", help="Form of the picture; yaml is for --effective."),
    ] = "text",
    effective: Annotated[
        bool,
        typer.Option("--effective", help="Print the manifest with all defaults and inferred outputs filled in."),
    ] = False,
) -> None:
    """Show a graph's nodes, where each stands between deterministic and agentic, and what orders them."""
    from decurion_cli.manifests import compiled
    from decurion_crds.show import show_mermaid, show_text

    with exits():
        if (effective and output == "mermaid") or (output == "yaml" and not effective):
            raise InputError(f"-o {output} {'is no form of a manifest' if effective else 'needs --effective'}")
        manifests, found = compiled(files, graph, use_run=False, as_used=True)
    if effective:
        written = manifests.graphs[graph or found.name][1]
        typer.echo(_effective(written, found, output), nl=False)
        return
    match output:
        case "text":
            typer.echo(show_text(found))
        case "mermaid":
            typer.echo(show_mermaid(found))
        case "json":
            typer.echo(orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2).decode())


def _effective(written: TaskGraph, found: CompiledGraph, output: str) -> str:
    """The manifest with its defaults: YAML, or JSON."""
    import yaml

    from decurion_crds.effective import effective

    shown = effective(written, found)
    if output == "json":
        return orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n"
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=116)
