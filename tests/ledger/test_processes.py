"""Writers in processes of their own, killed or stopped in the middle: on a local folder and on a real S3 server."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from decurion_ledger import read_log, verify
from decurion_ledger.stores import Credentials, LocalStore, Store, open_store
from logs import RUN, commit, open_log

WRITER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from decurion_ledger.errors import Fenced
from decurion_ledger.stores import open_store
from logs import commit, open_log
async def main():
    store = open_store(sys.argv[2])
    opened = await open_log(store, leader_epoch=int(sys.argv[3]), driver=f"pid-{sys.argv[3]}")
    number = len([r for _, r in opened.records if r.core])
    try:
        while True:
            names = [f"n{number}", f"n{number + 1}"]
            await opened.writer.append([commit(name) for name in names])
            print(*names, flush=True)
            number += 2
    except Fenced:
        print("fenced", flush=True)
asyncio.run(main())
"""


@asynccontextmanager
async def writer(uri: str, leader_epoch: int, env: dict[str, str]) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(Path(__file__).parent), uri, str(leader_epoch),
        stdout=PIPE, env={**os.environ, **env},
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def acknowledged(process: Process, lines: int) -> list[str]:
    assert process.stdout is not None
    return [name for _ in range(lines) for name in (await process.stdout.readline()).decode().split()]


async def rest(process: Process) -> list[str]:
    assert process.stdout is not None
    return (await process.stdout.read()).decode().split()


async def results(store: Store) -> list[str]:
    return [r.path.removeprefix("/") async for _, r in read_log(store, RUN) if r.core]


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Store, dict[str, str]]]:
    """A store, and the variables that a child process needs to open it at its `uri`."""
    if request.param == "local":
        store: Store = LocalStore(tmp_path / "store")
        yield store, {}
    else:
        server = request.getfixturevalue("s3_server")
        store = open_store(
            server.uri(f"processes-{os.urandom(4).hex()}"),
            endpoint_url=server.endpoint_url,
            credentials=Credentials(server.access_key, server.secret_key),
        )
        yield store, server.env
    await store.aclose()


async def test_killed_writers_lose_nothing_that_they_acknowledged(target: tuple[Store, dict[str, str]]) -> None:
    store, env = target
    names: list[str] = []
    for leader_epoch, lines in enumerate((3, 1, 5), start=1):
        async with writer(store.uri, leader_epoch, env) as process:
            names += await acknowledged(process, lines)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            names += [name for name in await rest(process) if name.startswith("n")]
    assert await verify(store, RUN) == []
    stored = await results(store)
    assert stored == [f"n{i}" for i in range(len(stored))]
    assert set(names) <= set(stored)


async def test_a_stopped_writer_that_wakes_up_finds_itself_fenced(target: tuple[Store, dict[str, str]]) -> None:
    store, env = target
    async with writer(store.uri, 1, env) as process:
        await acknowledged(process, 3)
        process.send_signal(signal.SIGSTOP)
        opened = await open_log(store, leader_epoch=2, driver="second")
        await opened.writer.append([commit("second")])
        process.send_signal(signal.SIGCONT)
        await process.wait()
        late = await rest(process)
    assert late[-1] == "fenced"
    stored = await results(store)
    assert stored[-1] == "second"
    assert set(late[:-1]) <= set(stored)
    assert await verify(store, RUN) == []
