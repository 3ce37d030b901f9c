"""Several nodes of one item fail, each after a time of its own: which one the item names does not depend on that."""

from __future__ import annotations

import pytest

from decurion_ledger import open_store
from decurion_worker.engine.causes import still_due
from manifests import compiled
from test_runs import Bench, _begin, _stores, done, put_all

LEAF = """
  input: {rows: {type: array, items: {type: integer}}}
  nodes:
    - name: rows
      map: {items: input.rows, as: row, template: row, tolerate: {count: 9}}
  output: {failures: nodes.rows.output.failures}
  templates:
    - name: row
      input: {row: {type: integer}}
      nodes:
        - name: cause
          with: {k: nodes.late.output.k}
          transform: {k: "1 // (k - k)"}
        - name: quick
          with: {row: input.row}
          transform: {k: "row // (row - row)"}
        - name: late
          with: {row: input.row}
          code: |
            t = 0
            for i in range(200000):
                t += i
            {"k": row + t}
          output: {k: {type: integer}}
      output: {a: nodes.cause.output.k, b: nodes.quick.output.k}
"""

WIDE = """
  input: {rows: {type: array, items: {type: integer}}}
  nodes:
    - name: rows
      map: {items: input.rows, as: row, template: row, tolerate: {count: 9}}
  output: {failures: nodes.rows.output.failures}
  templates:
    - name: row
      input: {row: {type: integer}}
      nodes:
        - name: cells
          map: {items: "[row for row in range(4)]", as: k, template: cell, concurrency: 1}
        - name: quick
          with: {row: input.row}
          transform: {k: "row // (row - row)"}
      output: {all: nodes.cells.output.items, k: nodes.quick.output.k}
    - name: cell
      input: {k: {type: integer}}
      nodes:
        - {name: same, with: {k: input.k}, transform: {k: "1 // (3 - k)"}}
      output: {k: nodes.same.output.k}
"""

ASKED = (
    WIDE.replace(
        """map: {items: "[row for row in range(4)]", as: k, template: cell, concurrency: 1}""",
        """graph: {template: cell}
          with: {k: input.row}""",
    )
    .replace(
        """        - {name: same, with: {k: input.k}, transform: {k: "1 // (3 - k)"}}
      output: {k: nodes.same.output.k}""",
        """        - {name: same, with: {k: input.k}, approval: {message: "Go on?"}}
      output: {ok: nodes.same.output.approved}""",
    )
    .replace("{all: nodes.cells.output.items,", "{all: nodes.cells.output.ok,")
)


@pytest.mark.parametrize(("spec", "named"), [(LEAF, "cause"), (WIDE, "cells")])
@pytest.mark.parametrize("branches", [1, 2, 64])
async def test_the_first_in_the_file_is_named_however_much_runs_at_once(spec: str, named: str, branches: int) -> None:
    session, _ = await done(compiled(spec), {"rows": [1, 2]}, branches=branches)
    assert session.projection()["phase"] == "Succeeded"
    assert [one["node"] for one in session.engine.output["failures"]] == [named, named]


@pytest.mark.parametrize("spec", [LEAF, WIDE])
async def test_the_first_in_the_file_is_named_wherever_the_run_was_cut(spec: str) -> None:
    async with Bench() as bench:
        whole, log = await bench.run(compiled(spec), {"rows": [1, 2]}), await bench.log()
        blobs = await bench.blobs()
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    states = {whole.facts.state_hash}
    for cut in range(len(body) + 1):
        store = open_store(f"memory://beside-{next(_stores)}")
        await put_all(store, blobs)
        await _begin(store, log[0], body[:cut])
        async with Bench(store=store) as bench:
            states.add((await bench.run(None, epoch=1)).facts.state_hash)
    assert len(states) == 1


async def test_nobody_is_waited_for_where_something_failed() -> None:
    session, _ = await done(compiled(ASKED), {"rows": [1]})
    assert [one["node"] for one in session.engine.output["failures"]] == ["quick"]


async def test_a_run_that_fails_anyway_starts_nothing_more() -> None:
    bound = WIDE.replace(", tolerate: {count: 9}", "")
    session, log = await done(compiled(bound), {"rows": [1]}, branches=1)
    assert session.projection()["phase"] == "Failed"
    assert not [record for record in log if record.path.endswith("/cells[00003]!output")]


class TestStillDue:
    SCOPE = """
  input: {k: {type: integer}}
  nodes:
    - {name: a, with: {k: nodes.d.output.k}, transform: {k: k}}
    - {name: b, with: {k: input.k}, transform: {k: k}}
    - {name: c, with: {k: nodes.b.output.k}, transform: {k: k}}
    - {name: d, with: {k: input.k}, transform: {k: k}}
    - {name: e, with: {k: input.k}, transform: {k: k}}
  output: {a: nodes.a.output.k, c: nodes.c.output.k, e: nodes.e.output.k}
"""

    @pytest.mark.parametrize(
        ("failed", "ended", "asking", "due"),
        [
            ({"e"}, {"e"}, set(), {"a", "b", "c", "d"}),
            ({"b"}, {"b"}, set(), {"a", "d"}),
            ({"b", "d"}, {"b", "d"}, set(), set()),
            ({"c"}, {"b", "c"}, {"d"}, set()),
            ({"c"}, {"b", "c", "d"}, {"d"}, {"a"}),
            ({"a"}, {"a", "d"}, set(), set()),
        ],
    )
    def test_what_stands_before_with_what_it_needs(
        self, failed: set[str], ended: set[str], asking: set[str], due: set[str]
    ) -> None:
        found = still_due(compiled(self.SCOPE).root, failed=failed, ended=ended, asking=asking)
        assert found == due
