"""`decurion artefact`: the files that a run leaves, named by its graph, listed and taken out of the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
import typer

from decurion_cli.exits import exits
from decurion_cli.ledger import LedgerOption, OutputOption, exists
from decurion_cli.places import LEDGER

app = typer.Typer(no_args_is_help=True, help="List the files that a run leaves, and take them out of its ledger.")
T = TypeVar("T")

RunArgument = Annotated[str, typer.Argument(help="A run's id.")]
AtOption = Annotated[
    str, typer.Option("--at", help="The files as the record at this path left them, as `ledger ls` prints it.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every file of the run, not only its artefacts.")]


def _do(work: Coroutine[Any, Any, T]) -> T:
    with exits():
        return asyncio.run(work)


@app.command("ls")
def ls(
    run: RunArgument,
    every: AllOption = False,
    at: AtOption = "",
    ledger: LedgerOption = LEDGER,
    output: OutputOption = "text",
) -> None:
    """List the artefacts of a run: name, type, size, SHA-256 and path of each file."""
    from decurion_cli.paths import written
    from decurion_cli.run_files import listed

    exists(ledger)
    rows = _do(listed(ledger, run, at=written(at), every=every))
    if output == "json":
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        typer.echo("  ".join(str(v) for v in row.values()))
    if not rows:
        none = "it holds no files" if every else "its graph names no artefacts; --all lists its files"
        typer.echo(f"run {run}: {none}", err=True)


@app.command("get")
def get(
    run: RunArgument,
    name: Annotated[str, typer.Argument(help="An artefact, or the path of a file. With --all, none.")] = "",
    every: AllOption = False,
    at: AtOption = "",
    to: Annotated[
        Path | None, typer.Option("--to", help="Where the file goes; for several files, a folder that is new or empty.")
    ] = None,
    ledger: LedgerOption = LEDGER,
) -> None:
    """Take an artefact out of the ledger: one file goes to the standard output, or to --to."""
    from decurion_cli.paths import written
    from decurion_cli.run_files import taken

    exists(ledger)
    with exits():
        content = asyncio.run(taken(ledger, run, "" if every else name, at=written(at), every=every, to=to))
    if content is not None:
        typer.get_binary_stream("stdout").write(content)
