"""`decurion storage`: whether a place is fit to keep a ledger."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

import orjson
import typer

from decurion_cli.exits import RUN_FAILED, exits
from decurion_cli.places import LEDGER

if TYPE_CHECKING:
    from decurion_ledger.probe import Progress, Property

app = typer.Typer(no_args_is_help=True, help="Check places that ledgers are kept in.")


@app.callback()
def storage_commands() -> None:
    """Check places that ledgers are kept in."""


@app.command("check")
def check(
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", envvar="DECURION_LEDGER", help="The place: a folder, or s3://bucket/prefix."),
    ] = LEDGER,
    clients: Annotated[int, typer.Option("--clients", min=2, max=64, help="Clients that work at once.")] = 4,
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Form of the answer.")] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Try whether a store keeps what a ledger rests on; what is written is deleted again.

    It writes some 1,500 small objects under checks/, in a few seconds to a minute; what it found stays in FORMAT, and a
    run refuses a store in which something failed.

    Exit codes: 0 fit, 1 unfit, 3 the store cannot be reached or used.
    """
    from decurion_cli.progress import Steps

    with exits(), Steps(f"check {uri}", enabled=not quiet) as steps:
        found = asyncio.run(_probe(uri, clients, steps.at))
    fit = all(one.verdict != "fail" for one in found)
    if output == "json":
        rows = [{"name": one.name, "verdict": one.verdict, "sentence": one.sentence} for one in found]
        answer = {"store": uri, "fit": fit, "properties": rows}
        typer.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
    else:
        _tell(uri, found, fit)
    if not fit:
        raise typer.Exit(RUN_FAILED)


def _tell(uri: str, found: list[Property], fit: bool) -> None:
    width = max(len(one.name) for one in found)
    for one in found:
        typer.echo(f"{one.verdict:<11}  {one.name:<{width}}  {one.sentence}")
    if fit:
        typer.echo(f"{uri} is fit for a ledger.")
    else:
        typer.echo(f"{uri} is not fit for a ledger: runs refuse it.")


async def _probe(uri: str, clients: int, progress: Progress) -> list[Property]:
    from decurion_ledger import open_store
    from decurion_ledger.admission import keep_verdicts
    from decurion_ledger.probe import probe

    stores = [open_store(uri)] if uri.startswith("memory:") else [open_store(uri) for _ in range(clients)]
    try:
        found = await probe(stores * clients if len(stores) == 1 else stores, progress=progress)
        await keep_verdicts(stores[0], found)
        return found
    finally:
        for store in stores:
            await store.aclose()
