"""Places where a value is handled that may be, or hold, a wide list."""

from __future__ import annotations

from typing import Any

import pytest

from decurion_ledger import verify
from manifests import compiled
from test_runs import Bench

WHOLE_INPUT = """
  schemas: {Row: {type: object, required: [id, pad], properties: {id: {type: integer}, pad: {type: string}}}}
  input: {rows: {type: array, items: Row}}
  nodes:
    - name: all
      with: {rows: input.rows}
      map: {items: input.rows, as: row, template: row}
  output: {ids: "[r.id for r in nodes.all.output.items]"}
  templates:
    - name: row
      input: {row: Row, rows: {type: array, items: Row}}
      nodes:
        - name: few
          transform: {ks: "[1, 2]"}
          output: {ks: {type: array, items: {type: integer}}}
        - name: cells
          with: {whole: input}
          map: {items: nodes.few.output.ks, as: k, template: cell}
      output: {id: "sum([c.k for c in nodes.cells.output.items])"}
    - name: cell
      input: {k: {type: integer}, whole: {type: object, required: [row], properties: {row: Row, rows: {type: array, items: Row}}}}
      nodes:
        - name: same
          with: {k: input.k, row: input.whole.row}
          transform: {k: "k + row.id"}
      output: {k: nodes.same.output.k}
"""  # noqa: E501

LEAF_INPUT = """
  schemas: {Row: {type: object, required: [id, pad], properties: {id: {type: integer}, pad: {type: string}}}}
  input: {rows: {type: array, items: Row}}
  nodes:
    - name: all
      with: {rows: input.rows}
      map: {items: input.rows, as: row, template: row}
  output: {ids: "[r.id for r in nodes.all.output.items]"}
  templates:
    - name: row
      input: {row: Row, rows: {type: array, items: Row}}
      nodes:
        - name: cells
          with: {whole: input}
          transform: {id: "whole.row.id + len(whole.rows)"}
      output: {id: nodes.cells.output.id}
"""

STATE = """
  schemas: {Row: {type: object, required: [id, pad], properties: {id: {type: integer}, pad: {type: string}}}}
  input: {rows: {type: array, items: Row}}
  state: [{name: rows, schema: {type: array, items: Row}, merge: append}, {name: last, schema: {type: array, items: Row}}]
  nodes:
    - name: one
      with: {rows: input.rows}
      transform: {rows: rows}
      writes: {rows: output.rows, last: output.rows}
    - name: two
      after: [one]
      with: {rows: input.rows}
      transform: {rows: rows}
      writes: {rows: output.rows, last: output.rows}
    - name: three
      after: [one, two]
      with: {joined: state.rows, last: "state.last or []"}
      transform: {ids: "len(joined) + len(last)", first: "joined[0].id", last: "joined[1].id"}
    - name: whole
      after: [one, two]
      with: {s: state}
      transform: {size: "len(s.rows)"}
  output: {ids: nodes.three.output.ids, first: nodes.three.output.first, rows: state.rows, size: nodes.whole.output.size}
"""  # noqa: E501

CHOICES = """
  input: {rows: {type: array, items: {type: string}}}
  nodes:
    - name: ask
      with: {rows: input.rows}
      llm: {ref: m, prompt: "which", choices: {pick: rows}}
      output: {pick: {type: string}}
  output: {pick: nodes.ask.output.pick}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: m}
spec: {protocol: scripted, scripted: {replies: [{match: "which", reply: '{"pick": "REPLY"}'}]}}
"""

OTHERWISE = """
  schemas: {Row: {type: object, required: [id, pad], properties: {id: {type: integer}, pad: {type: string}}}}
  input: {rows: {type: array, items: Row}}
  nodes:
    - name: maybe
      when: "len(input.rows) < 3"
      transform: {rows: "[{'id': 1, 'pad': ''}]"}
      output: {rows: {type: array, items: Row}}
      otherwise: {rows: input.rows}
    - name: keyed
      map: {items: nodes.maybe.output.rows, as: row, key: "f'{row.id}-{len(nodes.maybe.output.rows)}'", template: one}
    - name: picked
      switch: {value: "nodes.maybe.output.rows[0].id", cases: [{equals: 0, nodes: [zero]}], default: [other]}
    - name: zero
      with: {r: nodes.maybe.output}
      graph: {template: through}
    - name: other
      transform: {k: "1"}
  output: {rows: nodes.maybe.output.rows, size: "len(nodes.keyed.output.items)", r: "nodes.zero.output.r.rows if nodes.zero.output else []"}
  templates:
    - name: one
      input: {row: Row}
      nodes:
        - name: same
          with: {row: input.row}
          transform: {id: row.id}
      output: {id: nodes.same.output.id}
    - name: through
      input: {r: {type: object, required: [rows], properties: {rows: {type: array, items: Row}}}}
      nodes:
        - name: same
          with: {r: input.r}
          transform: {r: r}
      output: {r: nodes.same.output.r}
"""  # noqa: E501


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": i, "pad": "x" * 100} for i in range(count)]


async def finished(spec: str, given: dict[str, Any]) -> Any:
    async with Bench() as bench:
        # `input` is a reference from its genesis on.
        session = await bench.run(compiled(spec), given)
        problems = await verify(bench.store, "run-1")
        assert problems == []
        return session


@pytest.mark.parametrize("spec", [WHOLE_INPUT, LEAF_INPUT], ids=["driver", "leaf"])
@pytest.mark.parametrize("count", [3, 800])
async def test_the_whole_input_is_handed_on(count: int, spec: str) -> None:
    session = await finished(spec, {"rows": rows(count)})
    assert session.projection()["phase"] == "Succeeded", session.facts.message


@pytest.mark.parametrize("count", [3, 800])
async def test_channels_of_wide_lists(count: int) -> None:
    session = await finished(STATE, {"rows": rows(count)})
    assert session.projection()["phase"] == "Succeeded", session.facts.message
    output = session.engine.output
    assert (output["ids"], output["first"], output["size"]) == (3 * count, 0, 2 * count)


@pytest.mark.parametrize("count", [3, 8000])
async def test_choices_from_a_wide_list(count: int) -> None:
    words = [f"word-{i:06d}" for i in range(count)]
    session = await finished(CHOICES.replace("REPLY", words[1]), {"rows": words})
    assert session.projection()["phase"] == "Succeeded", session.facts.message


@pytest.mark.parametrize("count", [3, 800])
async def test_otherwise_keys_switches_and_graphs_over_wide_lists(count: int) -> None:
    session = await finished(OTHERWISE, {"rows": rows(count)})
    assert session.projection()["phase"] == "Succeeded", session.facts.message
