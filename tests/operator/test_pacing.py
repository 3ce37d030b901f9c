"""How fast status is written."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from decurion_operator.pacing import Limiter, Pacer
from decurion_operator.settings import OperatorSettings

SETTINGS = OperatorSettings()


@given(st.lists(st.floats(0, 3), min_size=1, max_size=100), st.floats(1, 50), st.integers(1, 30))
def test_a_limiter_lets_no_more_pass_than_its_rate_and_burst(gaps: list[float], rate: float, burst: int) -> None:
    limiter, now, passed = Limiter(rate=rate, burst=burst), 0.0, []
    for gap in gaps:
        now += gap
        passed.append(limiter.reserve(now))
    assert passed == sorted(passed)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + rate * (passed[last] - passed[first]) + 1 + 1e-6


def written(pacer: Pacer, *, seconds: float, size: int, uid: str = "u") -> int:
    """How many progress writes a run makes that has something new every 10 ms."""
    count, now = 0, 0.0
    while now < seconds:
        if pacer.progress(uid, now=now, size=size, age=now) == 0:
            pacer.wrote(uid, now=now)
            count += 1
        now += 0.01
    return count


def test_a_run_writes_progress_at_most_once_a_second_and_seldomer_as_it_ages() -> None:
    assert written(Pacer(SETTINGS), seconds=10, size=500) <= 11
    assert written(Pacer(SETTINGS), seconds=20, size=500) <= 20
    assert written(Pacer(SETTINGS), seconds=300, size=500) <= 65


def test_a_large_status_is_written_less_often() -> None:
    assert written(Pacer(SETTINGS), seconds=10, size=32 * 1024) <= 4


def test_a_phase_change_does_not_wait_for_progress() -> None:
    pacer = Pacer(SETTINGS)
    for n in range(500):
        pacer.progress(f"run-{n}", now=0.0, size=30_000, age=0.0)
    assert pacer.progress("late", now=0.0, size=30_000, age=0.0) > 10
    assert pacer.phase("ended", now=0.0, size=30_000) == 0


def test_phase_changes_keep_the_rate_and_the_bytes_too() -> None:
    small, large = Pacer(SETTINGS), Pacer(SETTINGS)
    assert 19 <= sum(small.phase(f"run-{n}", now=0.0, size=1_000) == 0 for n in range(100)) <= 20
    assert 7 <= sum(large.phase(f"run-{n}", now=0.0, size=32 * 1024) == 0 for n in range(100)) <= 8


def test_all_runs_together_keep_the_rate_and_the_oldest_goes_first() -> None:
    pacer = Pacer(replace(SETTINGS, all_status_bytes_rate=1e9))
    waits = [pacer.progress(f"run-{n}", now=0.0, size=100, age=0.0) for n in range(100)]
    assert waits == sorted(waits)
    assert sum(wait == 0 for wait in waits) <= 21
    assert waits[-1] >= 3.9


def test_two_hundred_runs_that_always_have_news_keep_both_budgets_whatever_else_happens() -> None:
    """Five minutes by a clock of the test: 200 runs with progress of 30 KB, and a phase change of 2 KB every 0.1 s."""
    pacer, passed = Pacer(SETTINGS), []
    due = {f"run-{n}": 0.0 for n in range(200)}
    for tick in range(3000):
        now = tick / 10
        if pacer.phase(f"other-{tick}", now=now, size=2_000) == 0:
            passed.append((now, 2_000))
            pacer.wrote(f"other-{tick}", now=now)
        for uid in [uid for uid, at in due.items() if at <= now]:
            wait = pacer.progress(uid, now=now, size=30_000, age=now)
            if wait == 0:
                passed.append((now, 30_000))
                pacer.wrote(uid, now=now)
            due[uid] = now + max(wait, 0.1)
    assert len(passed) <= 20 * 300 + 40
    assert sum(size for _, size in passed) <= 256 * 1024 * 300 + 2 * 256 * 1024
    assert sum(size == 2_000 for _, size in passed) == 3000, "a phase change waited for progress"
    assert sum(size == 30_000 for _, size in passed) >= 2_000, "what phase changes left over was not used"


def test_what_is_larger_than_the_burst_passes_in_its_turn_and_is_paid_for_afterwards() -> None:
    pacer = Pacer(SETTINGS)
    size = 3 * 256 * 1024
    assert pacer.progress("large", now=100.0, size=size, age=0.0) > 0
    assert pacer.progress("large", now=200.0, size=size, age=0.0) == 0
    pacer.wrote("large", now=200.0)
    assert 1.9 <= pacer.progress("small", now=200.0, size=1_000, age=0.0) <= 2.1


def test_asking_twice_does_not_pay_twice() -> None:
    pacer = Pacer(SETTINGS)
    for n in range(60):
        pacer.progress(f"run-{n}", now=0.0, size=100, age=0.0)
    first = pacer.progress("x", now=0.0, size=100, age=0.0)
    assert first > 0
    assert abs(pacer.progress("x", now=0.0, size=100, age=0.0) - first) < 1e-9
    assert pacer.progress("x", now=first, size=100, age=0.0) == 0
