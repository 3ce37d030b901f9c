"""`decurion ledger`: what is kept of runs, node by node, and whether it is intact."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Literal, TypeVar

import orjson
import typer

from decurion_cli.exits import RUN_FAILED, exits, fail
from decurion_cli.run import LEDGER

app = typer.Typer(no_args_is_help=True, help="Look into ledgers and check them.")
T = TypeVar("T")

LedgerOption = Annotated[
    str,
    typer.Option("--ledger", envvar="DECURION_LEDGER", help="The ledger: a folder, or s3://bucket/prefix."),
]
OutputOption = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Form of the answer.")]


def _do(work: Coroutine[Any, Any, T]) -> T:
    with exits():
        return asyncio.run(work)


@app.command("ls")
def ls(
    run: Annotated[str, typer.Argument(help="A run's id; without one, the runs are listed.")] = "",
    ledger: LedgerOption = LEDGER,
    output: OutputOption = "text",
) -> None:
    """List runs, or the paths of one run with what became of them."""
    from decurion_cli.records import list_paths, list_runs

    rows = _do(list_paths(ledger, run) if run else list_runs(ledger))
    if output == "json":
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        typer.echo("  ".join(str(v) for v in row.values()))


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(help="A run's id.")],
    path: Annotated[str, typer.Argument(help="A node's path, as `ls` prints it.")],
    ledger: LedgerOption = LEDGER,
    output: OutputOption = "text",
) -> None:
    """Show one node of a run: what it saw, what it returned, at what cost, and what was tried before."""
    from decurion_cli.records import describe, show_node

    node = _do(show_node(ledger, run, path))
    if output == "json":
        typer.echo(orjson.dumps(node, option=orjson.OPT_INDENT_2).decode())
    else:
        typer.echo(describe(node))


@app.command("verify")
def verify(
    run: Annotated[str, typer.Argument(help="A run's id; without one, every run of the ledger.")] = "",
    ledger: LedgerOption = LEDGER,
) -> None:
    """Check that a run's ledger is whole and unchanged: one line for each problem, exit 1 when there is one."""
    from decurion_cli.records import verify_runs

    results = _do(verify_runs(ledger, run))
    for name, problems in results.items():
        for problem in problems:
            typer.echo(f"{name}: {problem}")
        if not problems:
            typer.echo(f"{name}: ok (unsigned)")
    if not results:
        fail(f"{ledger} holds no run: check the place, or start one with `decurion run`", RUN_FAILED)
    if any(results.values()):
        raise typer.Exit(RUN_FAILED)
