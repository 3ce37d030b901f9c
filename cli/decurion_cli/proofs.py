"""`decurion ledger key`, and what is proved to somebody who has no access to the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decurion_cli.exits import exits


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
