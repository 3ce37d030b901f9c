"""The keyed work queue, with a clock of the test's."""

import asyncio
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from decurion_operator.errors import ClusterUnavailable
from decurion_operator.metrics import Meter
from decurion_operator.queue import Backoff, Dispatcher, Key, WorkQueue


def key(name: str, namespace: str = "a") -> Key:
    return Key("TaskGraphRun", namespace, name)


def queue() -> WorkQueue:
    return WorkQueue(Backoff(base=1.0, cap=60.0, rng=random.Random(7)))


def test_a_key_added_twice_is_taken_once() -> None:
    q = queue()
    q.add(key("x"))
    q.add(key("x"))
    assert q.take(0.0) == key("x")
    assert q.take(0.0) is None


def test_a_key_added_while_it_is_worked_on_is_due_again_afterwards_and_not_before() -> None:
    q = queue()
    q.add(key("x"))
    q.take(0.0)
    q.add(key("x"))
    q.add(key("x"))
    assert q.take(0.0) is None
    q.done(key("x"), now=0.0)
    assert q.take(0.0) == key("x")
    q.done(key("x"), now=0.0)
    assert q.take(0.0) is None


def test_namespaces_are_served_in_turn() -> None:
    q = queue()
    for n in range(100):
        q.add(key(f"crowd-{n}", "crowd"))
    q.add(key("lone", "lone"))
    taken = [q.take(0.0), q.take(0.0)]
    assert key("lone", "lone") in taken


def test_a_failed_key_comes_back_later_each_time_and_never_later_than_the_cap() -> None:
    q = queue()
    now, delays = 0.0, []
    for _ in range(12):
        q.add(key("x"))
        q.take(now)
        delays.append(q.done(key("x"), now=now, failed=True) or 0.0)
        now += 1000.0
    assert all(0.5 * 2**n <= delay <= 2**n for n, delay in enumerate(delays[:6]))
    assert all(30.0 <= delay <= 60.0 for delay in delays[6:])


def test_an_event_makes_a_failed_key_due_at_once_and_success_clears_its_back_off() -> None:
    q = queue()
    q.add(key("x"))
    q.take(0.0)
    q.done(key("x"), now=0.0, failed=True)
    assert q.take(0.0) is None
    q.add(key("x"))
    assert q.take(0.0) == key("x")
    q.done(key("x"), now=0.0)
    assert q.next_due() is None
    q.add(key("x"))
    q.take(0.0)
    assert (q.done(key("x"), now=0.0, failed=True) or 9.0) <= 1.0


def test_the_earliest_delayed_look_counts_and_a_look_in_between_clears_it() -> None:
    q = queue()
    q.add_at(key("x"), 10.0)
    q.add_at(key("x"), 5.0)
    q.add_at(key("x"), 20.0)
    assert q.next_due() == 5.0
    assert q.take(4.9) is None
    assert q.take(5.0) == key("x")
    q.done(key("x"), now=5.0)
    assert q.take(100.0) is None


def test_a_planned_look_is_kept_until_its_time() -> None:
    q = queue()
    q.add(key("x"))
    q.take(0.0)
    q.done(key("x"), now=0.0, wake=30.0)
    assert q.take(29.0) is None
    assert q.take(30.0) == key("x")


@given(st.lists(st.tuples(st.sampled_from(["add", "later", "take", "end", "fail"]), st.integers(0, 5)), max_size=80))
def test_no_key_is_worked_on_twice_at_a_time_and_none_that_was_added_is_forgotten(steps: list[tuple[str, int]]) -> None:
    q, now = queue(), 0.0
    active: list[Key] = []
    owed: set[Key] = set()
    for what, n in steps:
        now += 1.0
        chosen = key(str(n), f"ns-{n % 2}")
        if what == "add":
            q.add(chosen)
            owed.add(chosen)
        elif what == "later":
            q.add_at(chosen, now + n)
            owed.add(chosen)
        elif what == "take" and (taken := q.take(now)) is not None:
            assert taken not in active
            active.append(taken)
            owed.discard(taken)
        elif what in ("end", "fail") and active:
            ended = active.pop(0)
            q.done(ended, now=now, failed=what == "fail")
            if what == "fail":
                owed.add(ended)
    for ended in active:
        q.done(ended, now=now)
    served = set()
    while (taken := q.take(1e9)) is not None:
        served.add(taken)
        q.done(taken, now=1e9)
    assert owed <= served


async def test_an_object_that_cannot_be_handled_does_not_stop_the_others() -> None:
    seen: Counter[str] = Counter()
    done = asyncio.Event()

    async def reconcile(k: Key) -> float | None:
        seen[k.name] += 1
        if k.name == "broken":
            raise ZeroDivisionError
        if k.name == "unlucky" and seen["unlucky"] < 3:
            raise ClusterUnavailable("The API server gave no answer: it will be asked again.")
        if k.name == "unlucky":
            done.set()
        return None

    meter = Meter()
    dispatcher = Dispatcher(reconcile, backoff=Backoff(base=0.01, cap=0.02), concurrency=2, observer=meter)
    work = asyncio.ensure_future(dispatcher.run())
    for name in ("broken", "unlucky", "good"):
        dispatcher.add(key(name))
    async with asyncio.timeout(10):
        await done.wait()
    work.cancel()
    await dispatcher.drain(1.0)
    assert seen["good"] == 1
    assert seen["unlucky"] == 3
    assert b'error="ZeroDivisionError"' in meter.text()


async def test_at_most_so_many_reconciles_run_at_once() -> None:
    running, most = 0, 0
    gate = asyncio.Event()

    async def reconcile(k: Key) -> float | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return None

    dispatcher = Dispatcher(reconcile, backoff=Backoff(base=1, cap=1), concurrency=3, observer=Meter())
    work = asyncio.ensure_future(dispatcher.run())
    for n in range(10):
        dispatcher.add(key(str(n)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert most == 3
    gate.set()
    async with asyncio.timeout(10):
        while not dispatcher.idle:
            await asyncio.sleep(0)
    work.cancel()
    await dispatcher.drain(1.0)
    assert most == 3
