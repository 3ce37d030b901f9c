"""`decurion approve`: one decision of one person, on a cluster or in a ledger of this machine."""

from __future__ import annotations

import asyncio
import getpass
import logging
import shlex
from typing import Annotated, Any
from uuid import uuid4

import typer

from decurion_cli.exits import ENVIRONMENT, exits, fail
from decurion_crds.errors import InputError


def approve(
    run: Annotated[str, typer.Argument(help="The run: its name on the cluster, its id in a ledger.")],
    node: Annotated[str, typer.Argument(help="The path of the node, such as /review; needed where several wait.")] = "",
    reject: Annotated[bool, typer.Option("--reject", help="Say no.")] = False,
    form: Annotated[
        list[str] | None,
        typer.Option("--form", help="A field of the form: NAME=TEXT, or NAME:=JSON. May be repeated."),
    ] = None,
    comment: Annotated[str, typer.Option("--comment", help="Why, for whoever reads the ledger.")] = "",
    group: Annotated[str, typer.Option("--group", help="Decide as a member of this group.")] = "",
    ledger: Annotated[
        str,
        typer.Option("--ledger", envvar="DECURION_LEDGER", help="A ledger of this machine instead of the cluster."),
    ] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the run on the cluster.")] = "",
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", help="A kubeconfig; without it KUBECONFIG, or the default one.")
    ] = "",
    wait: Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to wait for the run to take it.")] = 30.0,
) -> None:
    """Approve, or reject, what a run waits for.

    Exit codes: 0 it was taken, 2 it was refused or nothing is asked, 3 something around is wrong.
    """
    from decurion_cli.asking import form_of
    from decurion_cli.paths import written

    with exits():
        filled, node = form_of(form or []), written(node)
        if ledger:
            logging.getLogger("decurion_worker").setLevel(logging.ERROR)
            by = asyncio.run(_in_ledger(run, node, not reject, filled, comment, group, ledger))
            typer.echo(f"{'rejected' if reject else 'approved'} by {by}")
            typer.echo(f"go on with: decurion run --resume {run} --ledger {shlex.quote(ledger)}")
            return
    try:
        from decurion_operator.approving import Decision, approve
        from decurion_operator.gateway import current_namespace
    except ImportError:
        fail("the cluster's client is not installed: pip install 'decurion[operator]', or name --ledger", ENVIRONMENT)
    # What it warns of is in the error that follows.
    logging.getLogger("kubernetes").setLevel(logging.ERROR)
    with exits():
        decision = Decision(not reject, node, group, comment, filled)
        where, config = namespace or current_namespace(kubeconfig or None), kubeconfig or None
        typer.echo(asyncio.run(approve(run, decision, namespace=where, kubeconfig=config, seconds=wait)))


async def _in_ledger(
    run: str, node: str, yes: bool, form: dict[str, Any] | None, comment: str, group: str, ledger: str
) -> str:
    """Write a decision into a ledger; who decided. Nothing else of the run goes on here."""
    from decurion_ledger import open_store
    from decurion_ledger.errors import StaleLeader
    from decurion_worker.approving import Answer
    from decurion_worker.driver import Driver, DriverSettings
    from decurion_worker.opening import OpenRequest
    from decurion_worker.sources import Sources

    settings = DriverSettings(crash_loops=False)
    sources = Sources(open_store, files=True, ledger=ledger)
    driver = Driver("approve", store=open_store(ledger), ledger_uri=ledger, sources=sources, settings=settings)
    await driver.start()
    try:
        session = await driver.open_run(OpenRequest(run=run, name=run))
        pending = [one for one in session.engine.approvals.pending() if node in ("", one.path)]
        if session.ended.is_set() or not pending:
            where = f" at {node}" if node else ""
            raise InputError(f"run {run} waits for nobody{where}; see `decurion ledger ls {run} --ledger {ledger}`")
        if len(pending) > 1:
            paths = ", ".join(one.path for one in pending[:5])
            raise InputError(f"run {run} asks several things; name the node that you decide, such as one of {paths}")
        (one,) = pending
        by, decision = getpass.getuser(), "Approve" if yes else "Reject"
        given = Answer(uuid4().hex, one.request, one.digest, decision, by, group=group, comment=comment, form=form)  # type: ignore[arg-type]
        verdict = await session.answer(given)
        if not verdict.accepted:
            raise InputError(f"run {run}: {verdict.why}")
        return by
    except StaleLeader as error:
        raise InputError(f"run {run} belongs to an operator; decide it on its cluster, without --ledger") from error
    finally:
        await driver.stop()
