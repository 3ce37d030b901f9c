"""A node whose first attempt fails: the attempt is a record of its own, and the node ends once, with its second."""

from __future__ import annotations

import pytest

from manifests import compiled
from test_runs import done

ROOT = """
  input: {k: {type: integer}}
  nodes:
    - name: ask
      with: {k: input.k}
      llm: {ref: m, prompt: "item {{ k }}"}
      output: {text: {type: string}, sure: {type: boolean}}
    - name: second
      with: {t: nodes.ask.output.text}
      transform: {t: "t + '!'"}
    - name: third
      with: {t: nodes.second.output.t}
      transform: {t: "t + '?'"}
  output: {t: nodes.third.output.t}
"""
MODEL = """
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: m}
spec:
  protocol: scripted
  scripted:
    replies: [{match: "item", reply: 'not json'}]
    default: '{"text": "x", "sure": true}'
"""
BRANCHES = f"""
  input: {{items: {{type: array, items: {{type: integer}}}}}}
  nodes: [{{name: each, map: {{items: input.items, as: k, template: one}}}}]
  output: {{t: "[one.t for one in nodes.each.output.items]"}}
  templates:
    - name: one{ROOT.replace(chr(10), chr(10) + "    ").rstrip()}
"""


@pytest.mark.parametrize(
    ("spec", "given", "output", "asked"),
    [
        (ROOT, {"k": 1}, {"t": "x!?"}, ["/ask"]),
        (BRANCHES, {"items": [1, 2]}, {"t": ["x!?", "x!?"]}, ["/each[00000]/ask", "/each[00001]/ask"]),
    ],
    ids=["handed out by the driver", "whole on a runner"],
)
async def test_a_failed_attempt_ends_nothing(spec: str, given: object, output: object, asked: list[str]) -> None:
    session, log = await done(compiled(spec + MODEL), given)
    assert session.projection()["phase"] == "Succeeded", session.facts.message
    assert session.engine.output == output
    assert sorted(r.path for r in log if r.type == "attempt_failed") == asked
    assert sorted(r.path for r in log if r.type == "commit" and r.path.endswith("/ask")) == asked
    assert session.engine.root.left == 0
