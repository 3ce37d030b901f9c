"""Which of the waiting runs may start."""

from hypothesis import given
from hypothesis import strategies as st

from decurion_operator.plan.pool import Place, Waiting, plan_admission, shown_anew

uids = st.integers(0, 30).map(str)
rows = st.lists(
    st.builds(Waiting, uids, st.integers(-2, 2), st.integers(0, 3).map(float), st.sampled_from("abc")),
    max_size=25,
    unique_by=lambda w: w.uid,
)


def waiting(uid: str, *, priority: int = 0, created: float = 0.0) -> Waiting:
    return Waiting(uid, priority, created, f"run-{uid}")


def test_priority_goes_before_age_and_age_before_name() -> None:
    runs = [waiting("late", created=2.0), waiting("early", created=1.0), waiting("urgent", priority=5, created=3.0)]
    places = plan_admission(runs, holding=frozenset(), limit=1)
    assert places["urgent"].admitted
    assert (places["early"].position, places["late"].position) == (1, 2)


def test_without_a_limit_everybody_starts() -> None:
    places = plan_admission([waiting(str(n)) for n in range(50)], holding=frozenset(), limit=None)
    assert all(place.admitted for place in places.values())


def test_a_position_far_from_the_front_is_rounded_so_that_it_seldom_changes() -> None:
    texts = {Place(n, 2).message for n in range(1000, 2000)}
    assert len(texts) <= 2
    assert "Position 7 in" in Place(7, 2).message


def test_that_one_of_thousands_ended_is_a_look_at_those_whose_text_changes() -> None:
    runs = [waiting(f"{n:04}", created=float(n)) for n in range(1000)]
    looks, holding = 0, frozenset[str]()
    before: dict[str, Place] = {}
    for ended in range(1000):
        places = plan_admission(runs[ended:], holding=holding, limit=1)
        looks += len(shown_anew(before, places))
        before, holding = places, frozenset({runs[ended + 1].uid}) if ended + 1 < 1000 else frozenset()
    assert looks <= 1000 * (1 + 10 + 9 * 3)


@given(rows, st.sets(uids), st.none() | st.integers(1, 10))
def test_no_more_run_than_the_limit_and_no_slot_stays_free(
    runs: list[Waiting], holding: set[str], limit: int | None
) -> None:
    places = plan_admission(runs, holding=frozenset(holding), limit=limit)
    assert places.keys() == {w.uid for w in runs}
    fresh = [w for w in runs if w.uid not in holding]
    admitted = [w for w in fresh if places[w.uid].admitted]
    assert all(places[w.uid].admitted for w in runs if w.uid in holding)
    if limit is None:
        assert len(admitted) == len(fresh)
    else:
        assert len(admitted) == min(len(fresh), max(0, limit - len(holding)))
    behind = sorted(places[w.uid].position for w in fresh if not places[w.uid].admitted)
    assert behind == list(range(1, len(behind) + 1))


@given(rows, st.integers(1, 5))
def test_who_was_admitted_stays_admitted_whoever_comes_later(runs: list[Waiting], limit: int) -> None:
    first = plan_admission(runs, holding=frozenset(), limit=limit)
    kept = frozenset(uid for uid, place in first.items() if place.admitted)
    urgent = [*runs, Waiting("urgent", 1000, 0.0, "urgent")]
    second = plan_admission(urgent, holding=kept, limit=limit)
    assert all(second[uid].admitted for uid in kept)
    assert sum(place.admitted for place in second.values()) <= max(limit, len(kept))
