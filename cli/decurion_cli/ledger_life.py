"""`decurion ledger copy` and `decurion ledger gc`: runs on their way to another store, and at the end of their time."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import orjson
import typer

from decurion_cli.durations import day, seconds, size
from decurion_cli.exits import RUN_FAILED, exits
from decurion_cli.ledger import OutputOption, exists
from decurion_crds.errors import InputError
from decurion_crds.findings import listed

if TYPE_CHECKING:
    from decurion_ledger.copying import Copied
    from decurion_ledger.retention import Collected

Uri = Annotated[str, typer.Argument(metavar="URI", help="The ledger: a folder, or s3://bucket/prefix.")]


def copy(
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="The ledger: a folder, s3://bucket/prefix, or a file *.tar.")
    ],
    run: Annotated[str, typer.Argument(help="A run's id; it must have ended.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="The ledger it is copied into, or a file *.tar.")],
    with_keys: Annotated[
        bool,
        typer.Option(
            "--with-keys",
            help="Also the key of the run, encrypted as it is, with which what is sensitive can be read in the copy; "
            "`decurion ledger erase` does not reach it there.",
        ),
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Copy a run that has ended into another ledger, with all that it needs, and verify the copy.

    A copy that was cut off is completed by the same command. A file *.tar holds one run, for cold storage; the same run
    gives the same file.

    Exit codes: 0 the copy is whole, 1 it has problems, 3 a
    store cannot be used.
    """
    if not is_archive(uri):
        exists(uri)
    with exits():
        done = asyncio.run(_copy(uri, run, to, with_keys))
    if output == "json":
        problems = [asdict(problem) for problem in done.problems]
        typer.echo(orjson.dumps({**asdict(done), "problems": problems}, option=orjson.OPT_INDENT_2).decode())
    else:
        for problem in done.problems:
            typer.echo(f"{run}: {problem}")
        verdict = "it is not whole" if done.problems else "the copy is verified"
        typer.echo(
            f"{run}: {done.objects} objects and {done.blobs} blobs copied to {to} ({size(done.bytes)}), "
            f"{done.present} were there; {verdict}."
        )
    if done.problems:
        raise typer.Exit(RUN_FAILED)


async def _copy(uri: str, run: str, to: str, keys: bool) -> Copied:
    """One of the two may be an archive."""
    from decurion_ledger import open_store
    from decurion_ledger.archive import pack_run, runs_in, unpack_run
    from decurion_ledger.copying import copy_run

    if is_archive(uri) and is_archive(to):
        raise InputError(f"{to}: an archive is the copy of another as it is; copy the file")
    held = await asyncio.to_thread(runs_in, Path(uri)) if is_archive(uri) else [run]
    if run not in held:
        raise InputError(f"{uri}: it holds {listed(held)}, and not {run}; name what it holds")
    if keys and (is_archive(uri) or is_archive(to)):
        raise InputError("--with-keys: an archive holds no keys; leave it out, or copy into a ledger")
    stores = [open_store(place) for place in (uri, to) if not is_archive(place)]
    try:
        if is_archive(to):
            return await pack_run(stores[0], run, Path(to))
        if is_archive(uri):
            return await unpack_run(Path(uri), run, stores[0])
        return await copy_run(stores[0], run, stores[1], keys=keys)
    finally:
        for store in stores:
            await store.aclose()


def is_archive(place: str) -> bool:
    return place.endswith(".tar") and "://" not in place


def gc(
    uri: Uri,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Runs that ended longer ago are deleted: 30d, 12h. A run that names its own retention goes by that.",
        ),
    ] = "30d",
    hold: Annotated[
        str,
        typer.Option(
            "--hold",
            metavar="AGE",
            help="Time between a run's condemnation and its deletion, and the least age of a blob that is deleted; 1h "
            "at least.",
        ),
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be done, and write nothing.")] = False,
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Form of the answer.")] = "text",
) -> None:
    """Delete what is over: runs that ended long ago, and what no run needs any more.

    A run is condemned first, and deleted by a later call; run it once a day. Runs that have not ended are never
    touched.

    Exit codes: 0 done, 1 a run needs a blob that is not there, or a log cannot be read, 3 the store cannot be used.
    """
    exists(uri)
    with exits():
        age, wait = seconds(older_than, "--older-than"), max(3600, seconds(hold, "--hold"))
        done = asyncio.run(_collect(uri, age, wait, dry_run))
    if output == "json":
        typer.echo(orjson.dumps(asdict(done) | {"dry_run": dry_run}, option=orjson.OPT_INDENT_2).decode())
    else:
        _tell(done, dry_run)
    if done.missing or done.unread:
        raise typer.Exit(RUN_FAILED)


async def _collect(uri: str, older_than: float, hold: float, dry_run: bool) -> Collected:
    from decurion_ledger import open_store
    from decurion_ledger.retention import collect

    store = open_store(uri)
    try:
        return await collect(store, older_than=older_than, hold=hold, dry_run=dry_run)
    finally:
        await store.aclose()


def _tell(done: Collected, dry_run: bool) -> None:
    for one in done.runs:
        word = {"condemned": "deleted after", "kept": "kept until"}.get(one.fate)
        when = f", {word} {day(one.until)} UTC" if word and one.until is not None else ""
        typer.echo(f"{one.fate:<9}  {one.run}  {one.why}{when}  ({one.objects} objects, {size(one.bytes)})")
    for key in done.missing:
        typer.echo(f"missing    {key}  a run needs it, and it is not there")
    verb = "would be deleted" if dry_run else "deleted"
    typer.echo(f"{done.blobs} blobs {verb} ({size(done.blob_bytes)}), {done.kept_blobs} kept.")
    if done.held_by:
        typer.echo(f"Blobs written since {day(done.floor)} UTC are kept for {done.held_by}, which has not ended.")
    if done.unread:
        typer.echo(f"No blob was deleted: {done.unread}")
