"""Actions that are repeated, loops that are started again, and a pool that answers slowly or oddly."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from decurion_operator.errors import PoolRefused, PoolUnavailable, StoreUnavailable
from decurion_operator.ingress import Ingress
from decurion_operator.metrics import Meter
from decurion_operator.plan.run import Action
from decurion_operator.queue import Backoff, Key
from decurion_operator.tasks import Deeds, forever

KEY = Key("TaskGraphRun", "ns", "r")


class Log:
    def __init__(self) -> None:
        self.changed = 0
        self.again: list[float] = []

    def deeds(self, *, base: float = 0.01) -> Deeds:
        def changed(key: Key) -> None:
            self.changed += 1

        return Deeds(
            changed=changed, again=lambda key, seconds: self.again.append(seconds), backoff=Backoff(base=base, cap=60.0)
        )


async def settled(deeds: Deeds, action: Action = Action.OPEN) -> None:
    async with asyncio.timeout(5):
        while deeds.in_flight("u", action):
            await asyncio.sleep(0)


async def test_an_action_is_in_flight_once() -> None:
    log, gate, begun = Log(), asyncio.Event(), 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        await gate.wait()

    deeds = log.deeds()
    assert deeds.start(KEY, "u", Action.OPEN, work)
    assert not deeds.start(KEY, "u", Action.OPEN, work)
    assert deeds.start(KEY, "u", Action.CANCEL, work)
    await asyncio.sleep(0)
    gate.set()
    await settled(deeds)
    assert begun == 2
    assert log.changed >= 1


async def test_a_failed_action_shows_its_trouble_and_waits_longer_each_time() -> None:
    log = Log()

    async def work() -> None:
        raise StoreUnavailable("The pool cannot reach its ledger store.")

    deeds = log.deeds(base=1000.0)
    deeds.start(KEY, "u", Action.OPEN, work)
    await settled(deeds)
    trouble = deeds.trouble("u")[Action.OPEN]
    assert (trouble.code, trouble.final) == ("StoreUnavailable", False)
    assert not deeds.start(KEY, "u", Action.OPEN, work)
    assert len(log.again) == 2
    assert all(seconds > 20 for seconds in log.again)


async def test_a_refusal_is_final_and_success_ends_the_trouble() -> None:
    log, fail = Log(), True

    async def work() -> None:
        if fail:
            raise PoolRefused("input.n is missing", code="BadInput")

    deeds = log.deeds(base=0.0)
    deeds.start(KEY, "u", Action.OPEN, work)
    await settled(deeds)
    assert deeds.trouble("u")[Action.OPEN].final
    fail = False
    deeds.start(KEY, "u", Action.OPEN, work)
    await settled(deeds)
    assert deeds.trouble("u") == {}


async def test_a_mistake_of_ours_becomes_trouble_and_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()

    async def work() -> None:
        raise ZeroDivisionError

    deeds = log.deeds()
    deeds.start(KEY, "u", Action.OPEN, work)
    await settled(deeds)
    assert deeds.trouble("u")[Action.OPEN].code == "InternalError"
    assert "ZeroDivisionError" in caplog.text


async def test_what_is_forgotten_reports_nothing_more() -> None:
    log, gate = Log(), asyncio.Event()
    deeds = log.deeds()
    deeds.start(KEY, "u", Action.OPEN, gate.wait)  # type: ignore[arg-type]
    deeds.forget("u")
    gate.set()
    await asyncio.sleep(0.01)
    assert log.changed == 0
    assert deeds.trouble("u") == {}


async def test_a_loop_that_fails_is_started_again_until_it_returns() -> None:
    begun = 0

    async def loop() -> None:
        nonlocal begun
        begun += 1
        if begun < 4:
            raise RuntimeError

    await asyncio.wait_for(forever("a loop", loop, backoff=Backoff(base=0.001, cap=0.002)), 5)
    assert begun == 4


async def test_a_loop_ends_with_whoever_runs_it() -> None:
    ended = asyncio.Event()

    async def loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.ensure_future(forever("a loop", loop, backoff=Backoff(base=1, cap=1)))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait_for(ended.wait(), 5)


@contextlib.asynccontextmanager
async def answering(answer: bytes, *, drip: float = 0.0) -> AsyncIterator[Ingress]:
    """A client of a server that gives `answer` to everything, a byte each `drip` seconds."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for byte in answer if drip else ():
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(drip)
            writer.write(b"" if drip else answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = Ingress(url, token="planted-token", seconds=0.5, observer=Meter())
    try:
        yield client
    finally:
        await client.aclose()
        server.close()


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not http at all\r\n\r\n",
        http("200 OK", b"<html>hello</html>"),
        http("200 OK", b"[]"),
        http("200 OK", b'{"drivers": 7}'),
        http("502 Bad Gateway", b"upstream"),
        http("500 Oops", b'{"error": "Boom", "message": "it broke"}'),
        http("301 Moved", b""),
        http("429 Too Many", b'{"error": "Busy"}'),
    ],
)
async def test_whatever_is_no_answer_of_the_protocol_means_that_the_pool_is_unavailable(answer: bytes) -> None:
    async with answering(answer) as client:
        with pytest.raises(PoolUnavailable) as refused:
            await client.drivers()
        assert "planted-token" not in str(refused.value)


async def test_an_answer_that_drips_is_given_up_in_time() -> None:
    async with answering(http("200 OK", b'{"drivers": []}' + b" " * 4000), drip=0.02) as client:
        async with asyncio.timeout(5):
            with pytest.raises(PoolUnavailable, match="TimeoutError"):
                await client.drivers()


@pytest.mark.parametrize("body", [b'{"drivers": [{}, 7, {"id": "d", "runs": null}]}', b'{"drivers": []}'])
async def test_odd_rows_are_left_out(body: bytes) -> None:
    async with answering(http("200 OK", body)) as client:
        found: Any = await client.drivers()
        assert all(driver.id == "d" for driver in found)
