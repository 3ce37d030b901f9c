"""What follows a failure is the same in a scope that the driver hands out and in a leaf scope on one runner."""

from __future__ import annotations

from typing import Any

import pytest

from manifests import compiled
from test_runs import done

FAILING_OTHERWISE = """
  input: {k: {type: integer}}
  nodes:
    - name: risky
      with: {k: input.k}
      code: |
        if k > 10:
            raise ValueError("too much")
        {"k": k}
      output: {k: {type: integer}}
      onFailure: otherwise
      otherwise: {k: "input.k // (input.k - input.k)"}
    - name: then
      after: [risky]
      with: {k: input.k}
      transform: {k: "k + 1"}
  output: {k: nodes.then.output.k}
"""

FAILING_WRITES = """
  input: {k: {type: integer}}
  state: [{name: seen, schema: {type: integer}}]
  nodes:
    - name: sub
      with: {k: input.k}
      graph: {template: inner}
      writes: {seen: "output.k // (output.k - output.k)"}
      onFailure: otherwise
      otherwise: {k: "-1"}
  output: {k: nodes.sub.output.k}
"""

INNER = """
    - name: inner
      input: {k: {type: integer}}
      nodes:
        - name: same
          with: {k: input.k}
          transform: {k: "k + 0"}
      output: {k: nodes.same.output.k}
"""

HEAD = """
  input: {k: {type: integer}}
  nodes:
    - name: each
      with: {k: input.k}
      graph: {template: one}
  output: {k: nodes.each.output.k}
"""


def leaf(spec: str, more: str) -> str:
    """The graph `spec` as a leaf template that a graph node runs whole on one runner."""
    body = "\n".join("    " + line for line in spec.strip("\n").splitlines())
    body = body.replace("      input:", "    - name: one\n      input:", 1)
    return HEAD + "  templates:\n" + body + "\n" + more


@pytest.mark.parametrize("where", ["driver", "runner"])
async def test_an_otherwise_that_fails_is_a_failure_wherever_it_runs(where: str) -> None:
    spec = FAILING_OTHERWISE if where == "driver" else leaf(FAILING_OTHERWISE, "")
    session, _ = await done(compiled(spec), {"k": 40})
    assert (session.projection()["phase"], session.engine.output) == ("Failed", None)


@pytest.mark.parametrize("where", ["driver", "runner"])
async def test_writes_that_fail_give_what_otherwise_says_wherever_they_run(where: str) -> None:
    more = "  templates:\n" + INNER
    spec = FAILING_WRITES + more if where == "driver" else leaf(FAILING_WRITES, INNER)
    session, _ = await done(compiled(spec), {"k": 4})
    output: Any = session.engine.output
    assert (session.projection()["phase"], output) == ("Succeeded", {"k": -1}), session.facts.message
