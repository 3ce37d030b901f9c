"""`decurion operator run` and `decurion crds`: the cluster's side."""

from __future__ import annotations

from typing import Annotated

import typer

from decurion_cli.exits import ENVIRONMENT, exits, fail

app = typer.Typer(no_args_is_help=True, help="Run the operator.")


@app.callback()
def operator_commands() -> None:
    """Run the operator."""


@app.command("run")
def run(
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="A namespace to watch; all of them without one."),
    ] = None,
    health_port: Annotated[int, typer.Option("--health-port", help="Port of /livez, /readyz and /metrics.")] = 8080,
    local_pools: Annotated[
        bool,
        typer.Option("--local-pools", help="Serve pools of mode Local: their nodes are executed on this machine."),
    ] = False,
) -> None:
    """Run the operator against the cluster of KUBECONFIG, or of the pod it is in."""
    try:
        from decurion_operator.main import OperatorSettings, run_operator
    except ImportError:
        fail("the operator is not installed: pip install 'decurion[operator]'", ENVIRONMENT)
    with exits():
        run_operator(
            OperatorSettings(namespaces=tuple(namespace or ()), health_port=health_port, local_pools=local_pools)
        )


def crds() -> None:
    """Print the CRDs and the policy of Approvals, for `decurion crds | kubectl apply --server-side -f -`."""
    import yaml

    from decurion_crds.policies import policy_manifests
    from decurion_crds.structural import crd_manifests

    typer.echo(yaml.safe_dump_all([*crd_manifests(), *policy_manifests()], sort_keys=False).rstrip())
