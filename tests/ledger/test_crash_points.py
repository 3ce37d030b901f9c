"""Writers that are killed again and again, and disks that break: nothing acknowledged is lost, and the end is the same.

That a writer may be cut off at each of its awaits is shown in `test_writer.py`.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import failing_calls
from cluster.s3 import S3Server
from decurion_ledger import LogWriter, read_log, verify
from decurion_ledger.stores import Credentials, LocalStore, Store, open_store
from duellist import result

HACK = Path(__file__).parents[2] / "hack"
KILLS = 20
RESULTS = 1000
"""Far more than are promised to the lives that are killed, however late they are: the last one is to close the run."""
RUN = "duel-0"
STATE = [(f"/n{i}", result(i, "").core_hash) for i in range(RESULTS)]


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Store, dict[str, str]]]:
    """A store, and the variables that a child process needs to open it at its `uri`."""
    if request.param == "local":
        store: Store = LocalStore(tmp_path / "store")
        yield store, {}
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        store = open_store(
            server.uri(f"crashes-{os.urandom(4).hex()}"),
            endpoint_url=server.endpoint_url,
            credentials=Credentials(server.access_key, server.secret_key),
        )
        yield store, server.env
    await store.aclose()


async def test_twenty_kills_lose_nothing_acknowledged_and_end_in_the_same_state(
    place: tuple[Store, dict[str, str]], tmp_path: Path
) -> None:
    store, env = place
    folder = tmp_path / "said"
    folder.mkdir()
    nursery = await asyncio.create_subprocess_exec(
        sys.executable, str(HACK / "duellist.py"), store.uri, "5.0", "0.0", str(folder), str(RESULTS),
        stdin=PIPE, stdout=PIPE, env={**os.environ, **env},
    )  # fmt: skip
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    promised: dict[str, int] = {}
    living = 0
    try:
        async with asyncio.timeout(120):
            for life in range(KILLS + 1):
                nursery.stdin.write(f"life-{life}\n".encode())
                name, pid = (await nursery.stdout.readline()).decode().split()
                living = int(pid)
                last = life == KILLS
                said = await _until_said(folder / name, f"closed {RUN}" if last else "ack ", 1 + life % 4)
                os.kill(living, signal.SIGKILL)
                living = 0
                promised |= {path: int(slot) for path, slot in said}
    finally:
        if living:
            os.kill(living, signal.SIGKILL)
        nursery.kill()
        await nursery.wait()
    assert await verify(store, RUN) == []
    stored = [(slot, record) async for slot, record in read_log(store, RUN)]
    assert [(r.path, r.core_hash) for _, r in stored if r.core] == STATE
    slots = {r.path: slot for slot, r in stored if r.core}
    assert promised.items() <= slots.items()
    # A life that was over before it had the log leaves no fence.
    assert KILLS // 2 < sum(r.type == "fence" for _, r in stored) <= KILLS + 1


async def _until_said(file: Path, word: str, times: int) -> list[tuple[str, str]]:
    """What a driver was promised of the run, once it has said `word` so often."""
    while True:
        text = _text(file)
        lines = text.splitlines()
        assert "died" not in lines
        if sum(line.startswith(word) for line in lines) >= (1 if word.startswith("closed") else times):
            break
        assert f"closed {RUN}" not in lines, "too few results for so many lives"
        await asyncio.sleep(0.005)
    whole = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [(line[3], line[2]) for line in whole if line[:2] == ["ack", RUN]]


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        ("write", "ENOSPC", "StoreFull"),
        ("fsync", "ENOSPC", "StoreFull"),
        ("write", "EIO", "StoreUnknown"),
        ("fsync", "EIO", "StoreUnknown"),
        ("link", "EIO", "StoreUnknown"),
    ],
)
async def test_a_disk_that_breaks_loses_nothing_acknowledged(call: str, error: str, told: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HACK / "failing_calls.py"), str(folder), call, error, stdout=PIPE
    )
    said, _ = await process.communicate()
    lines = said.decode().splitlines()
    assert process.returncode == 0, lines
    assert lines[-1] == told
    broken = lines.index("broken")
    assert lines[broken + 1 :] == [told], "nothing is acknowledged once the disk is broken"
    store = LocalStore(folder)
    opened = await LogWriter.open(store, "run-1", leader_epoch=2, driver="second", genesis=None)
    found = [r.path for _, r in opened.records if r.core]
    assert found[:broken] == [line.split()[1] for line in lines[:broken]]
    assert len(found) <= broken + 1
    await opened.writer.append([result(len(found), "second")])
    assert await verify(store, "run-1") == []
    await store.aclose()


def test_the_calls_of_this_machine_are_known() -> None:
    assert os.uname().machine in failing_calls.CALLS
