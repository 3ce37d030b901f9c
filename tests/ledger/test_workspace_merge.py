"""What many made of one workspace is merged by the table, and in no way by who was done first."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decurion_ledger.errors import BadTree, WorkspaceTooLarge
from decurion_ledger.workspace import EMPTY, Layer, Limits, Policy, merge, overlay
from trees import objects, texts, version

BASE = {"a": "A", "d/x": "X", "d/y": "Y"}

# What each arm changes, and what comes of it: files, or the paths of the conflicts.
TABLE: list[tuple[str, list[dict[str, Any]], dict[str, Any] | list[str]]] = [
    ("nobody changes anything", [{}, {}], {}),
    ("one changes", [{"a": "B"}, {}], {"a": "B"}),
    ("two make the same change", [{"a": "B"}, {"a": "B"}, {}], {"a": "B"}),
    ("two add the same file", [{"n": "N"}, {"n": "N"}], {"n": "N"}),
    ("one removes", [{"a": None}, {}], {"a": None}),
    ("two remove", [{"a": None}, {"a": None}], {"a": None}),
    ("one changes, another removes", [{"a": "B"}, {"a": None}], ["a"]),
    ("two change differently", [{"a": "B"}, {"a": "C"}], ["a"]),
    ("two add different files", [{"n": "1"}, {"n": "2"}], ["n"]),
    ("three ways", [{"a": "B"}, {"a": "C"}, {"a": None}], ["a"]),
    ("different files", [{"a": "B"}, {"d/x": "Z"}, {"n/m": "N"}], {"a": "B", "d/x": "Z", "n/m": "N"}),
    ("a folder becomes a file", [{"d/x": None, "d/y": None, "d": "D"}, {}], {"d/x": None, "d/y": None, "d": "D"}),
    ("a file becomes a folder", [{"a": None, "a/b": "B"}, {}], {"a": None, "a/b": "B"}),
    ("a file in one, a folder in another", [{"n": "N"}, {"n/m": "M"}], ["n"]),
    ("a file where another edits in the folder", [{"d/x": None, "d/y": None, "d": "D"}, {"d/x": "Z"}], ["d"]),
    ("a file where another adds to the folder", [{"d/x": None, "d/y": None, "d": "D"}, {"d/z": "Z"}], ["d"]),
    ("a folder where another edits the file", [{"a": None, "a/b": "B"}, {"a": "C"}], ["a"]),
    ("names that differ in case", [{"n/One": "1"}, {"n/one": "2"}], ["n/One"]),
    ("folders that differ in case", [{"N/1": "1"}, {"n/2": "2"}], ["N"]),
    ("names that differ in form", [{"caf\u00e9": "1"}, {"cafe\u0301": "2"}], ["cafe\u0301"]),
    ("a rename in case beside an edit", [{"a": None, "A": "A"}, {"a": "B"}], ["A"]),
]


async def _merged(arms: list[dict[str, Any]], policy: Policy, base: dict[str, str] = BASE, **more: Any) -> Any:
    kept = objects()
    start = await version(kept, base)
    versions = {number: await version(kept, changes, start) for number, changes in enumerate(arms)}
    done = await merge(kept, start, versions, policy, **more)
    return done, None if done.version is None else await texts(kept, done.version)


def _with(changes: dict[str, Any]) -> dict[str, str]:
    return {path: text for path, text in (BASE | changes).items() if text is not None}


@pytest.mark.parametrize(("arms", "due"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
async def test_the_table_of_merges(arms: list[dict[str, Any]], due: dict[str, Any] | list[str]) -> None:
    done, found = await _merged(arms, Policy.FAIL)
    if isinstance(due, list):
        assert done.version is None
        assert [conflict.path for conflict in done.conflicts] == due
    else:
        assert found == _with(due)
        assert not done.conflicts


PREFERRED: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([{"a": "B"}, {"a": "C"}], {"a": "B"}),
    ([{}, {"a": None}, {"a": "C"}], {"a": None}),
    ([{"a": "B", "n": "N"}, {"a": "C", "m": "M"}], {"a": "B", "n": "N", "m": "M"}),
    ([{"n": "N"}, {"n/m": "M"}], {"n": "N"}),
    ([{"d/z": "Z"}, {"d/x": None, "d/y": None, "d": "D"}], {"d/z": "Z"}),
    ([{"d/x": None, "d/y": None, "d": "D"}, {"d/z": "Z"}], {"d/x": None, "d/y": None, "d": "D"}),
    ([{"N/1": "1"}, {"n/2": "2"}, {"N/3": "3"}], {"N/1": "1"}),
]


@pytest.mark.parametrize(("arms", "due"), PREFERRED)
async def test_the_first_arm_wins_where_it_is_preferred_and_only_there(
    arms: list[dict[str, Any]], due: dict[str, Any]
) -> None:
    done, found = await _merged(arms, Policy.PREFER)
    assert found == _with(due)
    assert done.conflicts


async def test_a_resolver_finds_every_version_below_conflicts_and_the_base_in_its_place() -> None:
    arms = [{"a": "B", "n": "N"}, {"a": "C"}, {"a": None}, {"a": "B"}]
    done, found = await _merged(arms, Policy.RESOLVER)
    assert found == BASE | {"n": "N", ".conflicts/00000/a": "B", ".conflicts/00001/a": "C"}
    (conflict,) = done.conflicts
    told = conflict.to_json()
    assert told["path"] == "a"
    assert [(side["items"], side["kind"]) for side in told["sides"]] == [
        ([0, 3], "file"),
        ([1], "file"),
        ([2], "absent"),
    ]


async def test_a_namespace_gives_each_arm_a_folder_for_what_it_made() -> None:
    done, found = await _merged([{"a": "B"}, {"a": "C", "d/x": None}], Policy.NAMESPACE, names={0: "one", 1: "two"})
    assert found == BASE | {"one/a": "B", "two/a": "C"}
    assert not done.conflicts


async def test_disjoint_arms_may_not_even_agree() -> None:
    done, _ = await _merged([{"a": "B"}, {"a": "B"}], Policy.FAIL, disjoint=True)
    assert [conflict.path for conflict in done.conflicts] == ["a"]


async def test_a_merge_beyond_the_quota_is_refused() -> None:
    with pytest.raises(WorkspaceTooLarge, match="5 files, more than its limit of 4"):
        await _merged([{"n": "N"}, {"m": "M"}], Policy.FAIL, limits=Limits(files=4))


PATHS = st.sampled_from(["a", "b", "d", "d/x", "d/y", "d/X", "D/x", "e/f/g", "e/f", "e"])
ARM = st.dictionaries(PATHS, st.sampled_from(["1", "2", None]), max_size=3)


async def _make(kept: Any, changes: dict[str, Any], start: Any) -> Any:
    """An arm with these changes, as far as they can stand side by side."""
    now = start
    for path, text in changes.items():
        try:
            now = await version(kept, {path: text}, now)
        except BadTree:
            continue
    return now


@settings(max_examples=60, deadline=None)
@given(data=st.data(), policy=st.sampled_from(Policy), arms=st.lists(ARM, min_size=2, max_size=5))
def test_a_merge_is_the_same_in_whatever_order_the_arms_ended(data: Any, policy: Policy, arms: list[Any]) -> None:
    async def both() -> None:
        kept = objects()
        start = await version(kept, {"d/x": "X", "e": "E"})
        ended = {number: await _make(kept, changes, start) for number, changes in enumerate(arms)}
        order = data.draw(st.permutations(list(ended)))
        done = await merge(kept, start, ended, policy)
        again = await merge(objects(kept._store), start, {number: ended[number] for number in order}, policy)
        assert done.conflicts == again.conflicts
        assert (done.version and done.version.root) == (again.version and again.version.root)
        if done.version is not None:
            await texts(objects(kept._store), done.version)

    asyncio.run(both())


async def test_a_node_sees_what_those_before_it_wrote_and_a_later_one_over_an_earlier() -> None:
    kept = objects()
    start = await version(kept, {"a": "A", "b": "B", "c": "C"})
    first = await version(kept, {"a": "1", "x": "1"}, start)
    beside = await version(kept, {"b": "2"}, start)
    back = await version(kept, {"a": "A"}, first)
    layers = [
        Layer(first, lambda path: path in "ax"),
        Layer(beside, lambda path: path == "b"),
        Layer(back, lambda path: path == "a"),
    ]
    seen = await overlay(kept, start, layers)
    assert await texts(kept, seen) == {"a": "A", "b": "2", "c": "C", "x": "1"}
    assert (await overlay(kept, start, layers[:1])).root == first.root
    assert await overlay(kept, EMPTY, []) == EMPTY
