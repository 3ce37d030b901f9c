"""`decurion worker`: drivers and runners behind an ingress, for a WorkerPool of mode External."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated, Literal

import orjson
import typer

from decurion_cli.exits import ENVIRONMENT, exits, fail

app = typer.Typer(no_args_is_help=True, help="Serve runs.")


@app.callback()
def worker_commands() -> None:
    """Serve runs."""


@app.command("serve")
def serve(
    ledger: Annotated[str, typer.Option("--ledger", envvar="DECURION_LEDGER", help="A folder, or s3://bucket/prefix.")],
    executor: Annotated[Literal["local", "ray"], typer.Option("--executor", help="Where runners live.")] = "local",
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8700,
    token_env: Annotated[
        str, typer.Option("--token-env", help="Variable that holds the bearer token callers must present.")
    ] = "DECURION_POOL_TOKEN",
    driver: Annotated[str, typer.Option("--driver", help="Name of the driver.")] = "driver-0",
    min_runners: Annotated[int, typer.Option("--min-runners", min=0)] = 1,
    max_runners: Annotated[int, typer.Option("--max-runners", min=1)] = 1,
    branches: Annotated[int, typer.Option("--branches", min=1, help="Branches that one runner holds.")] = 1024,
    runner_cpus: Annotated[float, typer.Option("--runner-cpus", help="CPUs that a Ray runner asks for.")] = 0.5,
    ray_address: Annotated[
        str, typer.Option("--ray-address", help="A Ray cluster to join; without it one is started here.")
    ] = "",
    lease: Annotated[float, typer.Option("--lease", help="Seconds of silence after which a runner is lost.")] = 30.0,
    ping: Annotated[float, typer.Option("--ping", help="Seconds between pings of a driver.")] = 5.0,
    store_patience: Annotated[float, typer.Option("--store-patience", help="Seconds the store may be away.")] = 300.0,
) -> None:
    """Serve the ingress of one driver until it is told to stop. The first line on stdout is `{"url": …}`."""
    from decurion_cli.serving import ServeOptions, serve_until

    token = os.environ.get(token_env, "")
    if not token:
        fail(f"{token_env} is not set: give it the token that the pool's Secret holds", ENVIRONMENT)
    options = ServeOptions(
        ledger=ledger,
        ray=executor == "ray",
        host=host,
        port=port,
        token=token,
        driver=driver,
        min_runners=min_runners,
        max_runners=max(min_runners, max_runners),
        branches=branches,
        runner_cpus=runner_cpus,
        ray_address=ray_address,
        lease=lease,
        ping=ping,
        patience=store_patience,
    )

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, stop.set)
        await serve_until(stop, options, ready=lambda url: typer.echo(orjson.dumps({"url": url}).decode()))

    with exits():
        asyncio.run(main())
