"""The `decurion` command. Thin: each command is one module, and imports what it needs when it is called."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from decurion_cli import (
    approve,
    artefact,
    diff,
    erasing,
    fix,
    fmt,
    graph,
    ledger,
    ledger_life,
    node,
    operator,
    proofs,
    run,
    schema,
    storage,
    validate,
    worker,
)

app = typer.Typer(
    name="decurion",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("validate")(validate.validate)
app.command("fix")(fix.fix)
app.command("diff")(diff.diff)
app.command("run")(run.run)
app.command("schema")(schema.schema)
app.command("approve")(approve.approve)
ledger.app.command("copy")(ledger_life.copy)
ledger.app.command("gc")(ledger_life.gc)
ledger.app.command("erase")(erasing.erase)
for command in (proofs.anchor, proofs.prove, proofs.provenance, proofs.key):
    ledger.app.command()(command)
ledger.app.command("check-proof")(proofs.check_proof)
app.add_typer(ledger.app, name="ledger")
app.add_typer(artefact.app, name="artefact")
app.add_typer(storage.app, name="storage")
graph.app.command("fmt")(fmt.fmt)
app.add_typer(graph.app, name="graph")
app.add_typer(node.app, name="node")
app.add_typer(worker.app, name="worker")
app.add_typer(operator.app, name="operator")
app.command("crds")(operator.crds)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(installed_version("decurion"))
        raise typer.Exit


@app.callback()
def options(
    shown: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Agent graphs on Kubernetes: check them, run them here, look into their ledgers."""


@app.command("version")
def version() -> None:
    """Print the version."""
    _print_version(wanted=True)


def main() -> None:
    app()
