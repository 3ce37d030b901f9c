"""Merge rules through whole runs: narrow and wide, whoever is first, and in a run that was cut anywhere."""

from __future__ import annotations

import pytest

from decurion_ledger import Values, open_store, verify
from manifests import compiled
from test_runs import Bench, _begin, done, put_all

NUMBERS = """
  input: {k: {type: integer}}
  state:
    - {name: total, schema: {type: integer}, merge: sum}
    - {name: exact, schema: {type: number}, merge: sum, initial: 0.5}
    - {name: least, schema: {type: integer}, merge: min, initial: 10}
    - {name: most, schema: {type: number}, merge: {rule: max}}
    - {name: none, schema: {type: integer}, merge: sum}
  nodes:
    - {name: a, with: {k: input.k}, transform: {v: k}, writes: {total: output.v, exact: "0.1", least: output.v, most: "0.5"}}
    - {name: b, transform: {v: "2"}, writes: {total: output.v, exact: "0.2", least: output.v, most: output.v}}
    - {name: c, when: input.k > 5, transform: {v: "40"}, writes: {total: output.v, exact: "0.7", none: "3"}}
    - {name: d, after: [a, b, c], with: {t: state.total}, transform: {half: t / 2}}
  output: {total: state.total, exact: state.exact, least: state.least, most: state.most, none: state.none, half: nodes.d.output.half}
"""  # noqa: E501

LISTS = """
  schemas: {Row: {type: object, required: [id, by, pad], properties: {id: {type: integer}, by: {type: string}, pad: {type: string}}}}
  input: {start: {type: integer}, count: {type: integer}, pad: {type: string}}
  state: [{name: rows, schema: {type: array, items: Row}, merge: MERGE}]
  nodes:
    - name: news
      with: {start: input.start, count: input.count, pad: input.pad}
      transform: {rows: "[{'id': i, 'by': 'news', 'pad': pad} for i in range(count)]"}
      output: {rows: {type: array, items: Row}}
      writes: {rows: output.rows}
    - name: primary
      with: {start: input.start, count: input.count, pad: input.pad}
      transform: {rows: "[{'id': start + i, 'by': 'primary', 'pad': pad} for i in range(count)]"}
      output: {rows: {type: array, items: Row}}
      writes: {rows: output.rows}
    - name: same
      with: {pad: input.pad}
      transform: {rows: "[{'id': 0, 'by': 'news', 'pad': pad}]"}
      output: {rows: {type: array, items: Row}}
      writes: {rows: output.rows}
    - name: look
      after: [news, primary, same]
      with: {rows: state.rows}
      transform: {by: "[f'{one.id} {one.by}' for one in rows]"}
  output: {by: nodes.look.output.by, rows: state.rows}
"""  # noqa: E501


def lists(merge: str) -> str:
    return LISTS.replace("MERGE", merge)


async def test_numbers_are_added_and_compared() -> None:
    session, _ = await done(compiled(NUMBERS), {"k": 3})
    assert session.engine.output == {"total": 5, "exact": 0.8, "least": 2, "most": 2.0, "none": 0, "half": 2.5}
    session, _ = await done(compiled(NUMBERS), {"k": 6})
    assert session.engine.output == {"total": 48, "exact": 1.5, "least": 2, "most": 2.0, "none": 3, "half": 24.0}


async def test_a_sum_that_no_number_holds_fails_where_it_is_read() -> None:
    session, _ = await done(compiled(NUMBERS), {"k": 2**53 - 2})
    assert session.projection()["phase"] == "Failed"
    (failure,) = session.projection()["failures"]
    assert failure["path"] == "/d"
    assert "the sum in channel total is beyond what a number can hold; declare type: number" in failure["message"]


NEWS, PRIMARY = [f"{i} news" for i in range(4)], [f"{i} primary" for i in range(2, 6)]
EXPECTED: dict[str, list[str]] = {
    "append": [*NEWS, *PRIMARY, "0 news"],
    "{rule: append, order: [same, primary]}": ["0 news", *PRIMARY, *NEWS],
    "union": [*NEWS, *PRIMARY],
    "{rule: union, order: [primary]}": [*PRIMARY, *NEWS],
    "{rule: mergeByKey, key: id}": [*NEWS, "4 primary", "5 primary"],
    "{rule: mergeByKey, key: id, prefer: first, order: [primary, news, same]}": [*PRIMARY, "0 news", "1 news"],
    "{rule: mergeByKey, key: id, prefer: last}": ["0 news", "1 news", *PRIMARY],
}


@pytest.mark.parametrize("merge", EXPECTED)
@pytest.mark.parametrize("pad", [1, 20_000], ids=["narrow", "wide"])
async def test_lists_are_merged_in_the_order_of_the_file_or_of_order(merge: str, pad: int) -> None:
    async with Bench() as bench:
        session = await bench.run(compiled(lists(merge)), {"start": 2, "count": 4, "pad": "x" * pad})
        assert session.projection()["phase"] == "Succeeded", session.facts.message
        assert session.engine.output["by"] == EXPECTED[merge]
        values = await Values(bench.store, "run-1").load(session.engine.output["rows"])
        assert [f"{one['id']} {one['by']}" for one in values] == EXPECTED[merge]
        assert await verify(bench.store, "run-1") == []


@pytest.mark.parametrize("pad", [1, 20_000], ids=["narrow", "wide"])
async def test_items_that_differ_are_refused_naming_both_writers(pad: int) -> None:
    spec = lists("{rule: mergeByKey, key: id, prefer: error}")
    session, _ = await done(compiled(spec), {"start": 2, "count": 4, "pad": "x" * pad})
    (failure,) = session.projection()["failures"]
    assert failure["path"] == "/look"
    assert failure["message"].endswith(
        "news and primary wrote different items with id 2 to channel rows, whose merge says prefer: error; correct one "
        "of them, or declare prefer: first or prefer: last"
    )
    # Equal items of one key are one item.
    session, _ = await done(compiled(spec), {"start": 4, "count": 4, "pad": "x" * pad})
    assert session.engine.output["by"] == [*NEWS, *(f"{i} primary" for i in range(4, 8))]


async def test_what_nobody_reads_need_not_be_merged() -> None:
    spec = lists("{rule: mergeByKey, key: id, prefer: error}").replace(
        "state.rows}\n      transform", "input.pad}\n      transform"
    )
    spec = spec.replace("[f'{one.id} {one.by}' for one in rows]", "[rows]").replace(", rows: state.rows}", "}")
    session, _ = await done(compiled(spec), {"start": 2, "count": 4, "pad": "x"})
    assert session.projection()["phase"] == "Succeeded", session.facts.message


@pytest.mark.parametrize("pad", [1, 20_000], ids=["narrow", "wide"])
async def test_a_run_that_was_cut_anywhere_merges_the_same(pad: int) -> None:
    graph = compiled(lists("{rule: mergeByKey, key: id, prefer: last, order: [primary]}"))
    given = {"start": 1, "count": 4, "pad": "x" * pad}
    async with Bench() as bench:
        whole, log, blobs = await bench.run(graph, given), await bench.log(), await bench.blobs()
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    for cut in range(len(body) + 1):
        store = open_store(f"memory://merged-{pad}-{cut}")
        await put_all(store, blobs)
        await _begin(store, log[0], body[:cut])
        async with Bench(store=store) as resumed:
            session = await resumed.run(None, epoch=1)
        assert session.facts.state_hash == whole.facts.state_hash, f"cut after {cut} records"
