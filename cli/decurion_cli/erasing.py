"""`decurion ledger erase`: what is sensitive in a run, for good."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from decurion_cli.exits import exits
from decurion_cli.ledger import OutputOption, exists
from decurion_cli.ledger_life import Uri
from decurion_crds.errors import InputError

if TYPE_CHECKING:
    from decurion_ledger import Erasure


def erase(
    uri: Uri,
    run: Annotated[str, typer.Argument(help="A run's id.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be erased, and write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    output: OutputOption = "text",
) -> None:
    """Erase what is sensitive in a run, for good: its key is destroyed, in all versions that the store keeps.

    Runs that took results of it, or that it took some of, have the same key, and are erased with it. Records, hashes
    and signatures stay, and verify. A run that has not ended cannot go on.

    Copies of the key elsewhere are not found: backups, and `decurion ledger copy --with-keys`.
    """
    exists(uri)
    with exits():
        found = asyncio.run(_erase(uri, run, dry_run=True))
        if not dry_run and not yes and not found.before:
            others = [other for other in found.runs if other != run]
            beside = f", and in {', '.join(others)}, which have the same values" if others else ""
            if not _confirmed(f"Erase what is sensitive in {run}{beside}? Nobody can bring it back"):
                raise InputError("nothing was erased")
        done = found if dry_run else asyncio.run(_erase(uri, run, dry_run=False))
    if output == "json":
        said: dict[str, Any] = {"runs": list(done.runs), "before": done.before, "dry_run": dry_run}
        typer.echo(orjson.dumps(said, option=orjson.OPT_INDENT_2).decode())
        return
    verb = "was erased before" if done.before else "would be erased" if dry_run else "is erased"
    for name in done.runs:
        typer.echo(f"{name}: what is sensitive in it {verb}.")


def _confirmed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as error:
        typer.echo(err=True)
        raise InputError(
            "nothing was erased, since nobody answered; say --yes where nobody is at a terminal"
        ) from error


async def _erase(uri: str, run: str, *, dry_run: bool) -> Erasure:
    from decurion_ledger import erase as destroy
    from decurion_ledger import open_store

    store = open_store(uri)
    try:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return await destroy(store, run, at=at, dry_run=dry_run)
    finally:
        await store.aclose()
