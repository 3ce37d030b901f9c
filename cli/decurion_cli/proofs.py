"""`decurion ledger anchor`, `prove`, `check-proof`, `provenance` and `key`: what somebody else can check."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer

from decurion_cli.exits import RUN_FAILED, exits, fail
from decurion_cli.ledger import AnchorKeyOption, AnchorsOption, LedgerOption, RootKeyOption
from decurion_cli.places import LEDGER

RunArgument = Annotated[str, typer.Argument(help="A run's id.")]


def key(
    file: Annotated[
        Path, typer.Argument(help="Where the private key goes, such as root.key; its public part: root.pem.")
    ],
) -> None:
    """Make a key that appoints drivers, or signs anchors: an Ed25519 private key as PEM, and its public part."""
    from decurion_cli.trust import make_key

    with exits():
        public = make_key(file)
    typer.echo(f"private key: {file}\npublic key: {public}")


def anchor(
    run: Annotated[str, typer.Argument(help="A run's id; all of them without one.")] = "",
    ledger: LedgerOption = LEDGER,
    to: Annotated[str, typer.Option("--to", help="The store of the anchors: a folder, or s3://bucket/prefix.")] = ...,  # type: ignore[assignment]
    sign: Annotated[Path, typer.Option("--sign", help="The private key of the anchors, as PEM.")] = ...,  # type: ignore[assignment]
    root_key: RootKeyOption = None,
) -> None:
    """Verify logs, also against their earlier anchors, and write down in a second store how long they are by now.

    One line for each run. What has a problem is not anchored, and the exit code is 1."""
    from decurion_cli.trust import anchor_runs, private_key, root_keys

    with exits():
        key, roots = private_key(sign), root_keys(root_key or [])
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        found = asyncio.run(anchor_runs(ledger, run, to, key, roots, at))
    for name, one in found.items():
        for problem in one.report.problems:
            typer.echo(f"{name}: {problem}")
        if not one.report.problems:
            typer.echo(f"{name}: {'anchored' if one.new else 'was anchored'} at {one.report.slots} slots")
    if any(one.report.problems for one in found.values()):
        raise typer.Exit(RUN_FAILED)


def prove(
    run: RunArgument,
    path: Annotated[str, typer.Argument(help="A node's path, as `ls` prints it.")],
    ledger: LedgerOption = LEDGER,
    anchors: AnchorsOption = "",
) -> None:
    """Print a proof that a record is in a run's log, for somebody who cannot read the ledger."""
    from decurion_cli.paths import written
    from decurion_cli.trust import proof_of

    with exits():
        proof = asyncio.run(proof_of(ledger, run, written(path), anchors))
    typer.echo(orjson.dumps(proof, option=orjson.OPT_INDENT_2).decode())


def check_proof(
    file: Annotated[Path, typer.Argument(help="What `decurion ledger prove` wrote.")],
    root_key: RootKeyOption = None,
    anchor_key: AnchorKeyOption = None,
) -> None:
    """Say what a proof proves; exit 1 when it proves nothing. Nothing but the file and the keys is needed."""
    from decurion_cli.trust import proved_text, read_proof, root_keys
    from decurion_ledger import check_proof as checked

    with exits():
        found = read_proof(file)
        roots, keys = root_keys(root_key or []), root_keys(anchor_key or [])
    proved = checked(found, roots=roots, anchor_keys=keys)
    text = "\n".join(proved_text(proved))
    if proved.fault is not None:
        fail(text, RUN_FAILED)
    typer.echo(text)


def provenance(run: RunArgument, ledger: LedgerOption = LEDGER) -> None:
    """Print the statement of a run that has ended: an in-toto statement with SLSA provenance in a DSSE envelope."""
    from decurion_cli.trust import statement_of

    with exits():
        typer.echo(asyncio.run(statement_of(ledger, run)).decode())
