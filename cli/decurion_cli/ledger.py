"""`decurion ledger`: what is kept of runs, node by node, and whether it is intact."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import orjson
import typer

from decurion_cli.exits import RUN_FAILED, exits, fail
from decurion_cli.places import LEDGER
from decurion_cli.revealing import SealKeyOption, revealing
from decurion_crds.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Look into ledgers and check them.")
T = TypeVar("T")

LedgerOption = Annotated[
    str,
    typer.Option("--ledger", envvar="DECURION_LEDGER", help="The ledger: a folder, or s3://bucket/prefix."),
]
RootKeyOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--root-key",
        envvar="DECURION_ROOT_KEY",
        help="Public keys, as PEM, of who may appoint drivers: every segment must be signed by such a driver.",
    ),
]
AnchorsOption = Annotated[
    str, typer.Option("--anchors", help="The store with the anchors of the runs: a folder, or s3://bucket/prefix.")
]
AnchorKeyOption = Annotated[
    list[Path] | None,
    typer.Option("--anchor-key", help="Public keys, as PEM, of who may write anchors; needed with --anchors."),
]
OutputOption = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Form of the answer.")]


def _do(work: Coroutine[Any, Any, T]) -> T:
    with exits():
        return asyncio.run(work)


def _where(arguments: list[str], ledger: str) -> tuple[str, list[str]]:
    """The ledger and the other arguments: an address, or a folder, in front stands for --ledger."""
    if arguments and ("/" in arguments[0] or Path(arguments[0]).is_dir()):
        return arguments[0], arguments[1:]
    return ledger, arguments


def exists(ledger: str) -> None:
    """Exit with a sentence where a folder is named that is not there: it must not look like one without runs."""
    with exits():
        folder = Path(unquote(urlsplit(ledger).path) if ledger.startswith("file:") else ledger)
        if folder.is_file():
            raise InputError(
                f"{ledger}: it is a file; bring its run back by `decurion ledger copy {ledger} RUN LEDGER`"
            )
        if ("://" not in ledger or ledger.startswith("file:")) and not folder.is_dir():
            raise InputError(f"{ledger}: there is no ledger; correct its address, or run a graph on it first")


@app.command("ls")
def ls(
    where: Annotated[
        list[str] | None,
        typer.Argument(help="The ledger, if it is not --ledger; then a run.", metavar="[LEDGER] [RUN]"),
    ] = None,
    ledger: LedgerOption = LEDGER,
    output: OutputOption = "text",
) -> None:
    """List runs, or the paths of one run with what became of them."""
    from decurion_cli.records import list_paths, list_runs

    place, rest = _where(where or [], ledger)
    exists(place)
    rows = _do(list_paths(place, rest[0]) if rest else list_runs(place))
    if output == "json":
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        typer.echo("  ".join(str(v) for v in row.values()))


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(help="A run's id.")],
    path: Annotated[
        str, typer.Argument(help="A node's path, as `ls` prints it, or with the key of an item: /each[ACME]/read.")
    ],
    ledger: LedgerOption = LEDGER,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show what is sensitive, too.")] = False,
    seal_key: SealKeyOption = None,
    output: OutputOption = "text",
) -> None:
    """Show one node of a run: what it saw, what it returned, at what cost, and what was tried before.

    What is sensitive is shown as (sensitive), or as (erased)."""
    from decurion_cli.paths import written
    from decurion_cli.records import describe, show_node

    revealed = revealing(ledger, run, seal_key) if reveal else None
    node = _do(show_node(ledger, run, written(path), revealed))
    if output == "json":
        typer.echo(orjson.dumps(node, option=orjson.OPT_INDENT_2).decode())
    else:
        typer.echo(describe(node))


@app.command("verify")
def verify(
    where: Annotated[
        list[str] | None,
        typer.Argument(
            help="The ledger, if it is not --ledger; then a run. Without a run, all of them.", metavar="[LEDGER] [RUN]"
        ),
    ] = None,
    ledger: LedgerOption = LEDGER,
    root_key: RootKeyOption = None,
    anchors: AnchorsOption = "",
    anchor_key: AnchorKeyOption = None,
    output: OutputOption = "text",
) -> None:
    """Check that ledgers are whole and unchanged, with --root-key that appointed drivers wrote them, and with --anchors
    that nothing of them was cut off or put back.

    One line for each problem, exit 1 when there is one. Nothing but the ledger and the key is needed."""
    from decurion_cli.trust import anchors_of, as_text, report_to_json, root_keys, verify_runs

    place, rest = _where(where or [], ledger)
    exists(place)
    with exits():
        roots = root_keys(root_key or [])
        compared = anchors_of(anchors, anchor_key or [])
    reports = _do(verify_runs(place, rest[0] if rest else "", roots, compared))
    if not reports:
        fail(f"{place} holds no run: check the place, or start one with `decurion run`", RUN_FAILED)
    if output == "json":
        rows = [report_to_json(name, report) for name, report in reports.items()]
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
    else:
        for name, report in reports.items():
            typer.echo("\n".join(as_text(name, report, roots)))
    if any(report.problems for report in reports.values()):
        raise typer.Exit(RUN_FAILED)
