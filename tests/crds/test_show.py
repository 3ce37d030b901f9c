"""`graph show`: what a person sees of a compiled graph."""

from __future__ import annotations

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.loader import load_text
from decurion_crds.show import show_mermaid, show_text
from decurion_crds.v1alpha1 import LLM, TaskGraph

MANIFESTS = """
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: {text: hi}}}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: letters}
spec:
  input: {letters: {type: array, items: {type: string}}, longest: {type: integer}}
  state: [{name: seen, schema: {type: integer}, initial: 0}]
  nodes:
    - {name: answers, map: {items: input.letters, as: letter, template: answer}}
    - name: long
      with: {answers: "[a for a in nodes.answers.output.items if len(a) > input.longest and a != \\"\\"]"}
      transform: {rows: answers}
      writes: {seen: len(output.rows)}
    - {name: tell, after: [long], with: {seen: state.seen}, code: "str(seen)", output: {type: string}}
  output: {rows: nodes.long.output.rows, told: nodes.tell.output}
  templates:
    - name: answer
      input: {letter: {type: string}}
      nodes: [{name: write, with: {letter: input.letter}, llm: {ref: fast, prompt: "Answer {{ letter }}"}}]
      output: {$value: nodes.write.output.text}
"""

TEXT = """
letters  DIGEST
graph(letters, longest)
  ···●·  answers  map        for each input.letters → template answer
  ●····  long     transform
                    ⇠ answers   with.answers: [a for a in nodes.answers.output.items if len(a) > input.lo…
  ·●···  tell     code
                    ← long
  → rows: nodes.long.output.rows
  → told: nodes.tell.output

template answer(letter)
  ···●·  write  llm        model fast
  → $value: nodes.write.output.text

scale: transform · code · tool · llm · agent  (deterministic to agentic)
"""

MERMAID = """
flowchart TD
  subgraph root["letters"]
    root_answers{{"answers<br/><small>map answer</small>"}}:::llm
    root_long["long<br/><small>transform</small>"]:::transform
    root_tell[["tell<br/><small>code</small>"]]:::code
    root_answers -. "with.answers: [a for a in nodes.answers.output.items if len(a) #gt; input.lo…" .-> root_long
    root_long --> root_tell
  end
  subgraph t_answer["template answer"]
    t_answer_write(["write<br/><small>llm fast</small>"]):::llm
  end
  root_answers -. "for each letter" .-> t_answer
"""


def test_text_and_mermaid_show_order_and_what_made_it() -> None:
    models, found = load_text(MANIFESTS, "g.yaml").parse()
    assert found == []
    [graph] = [model for _, model in models if isinstance(model, TaskGraph)]
    llms = {model.name: model for _, model in models if isinstance(model, LLM)}
    with Checker() as checker:
        compiled = compile_graph(graph, llms=llms, checker=checker).result()
    assert show_text(compiled).replace(compiled.digest[:12], "DIGEST") == TEXT.strip()
    assert show_mermaid(compiled).startswith(MERMAID.strip())


CHOICES = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: router}
spec:
  input: {kind: {type: string}, text: {type: string}}
  nodes:
    - {name: route, switch: {value: input.kind, cases: [{equals: a, nodes: [one]}], default: [two]}}
    - {name: one, with: {text: input.text}, graph: {template: answer}}
    - {name: two, with: {text: input.text}, transform: {v: text}}
  output: {one: nodes.one.output, two: nodes.two.output}
  templates:
    - name: answer
      input: {text: {type: string}}
      nodes: [{name: write, with: {text: input.text}, code: text, output: {type: string}}]
      output: {$value: nodes.write.output}
"""


def test_a_switch_shows_its_cases_and_a_graph_its_template() -> None:
    [(_, graph)], _ = load_text(CHOICES, "g.yaml").parse()
    assert isinstance(graph, TaskGraph)
    with Checker() as checker:
        compiled = compile_graph(graph, llms={}, checker=checker).result()
    text, mermaid = show_text(compiled).splitlines(), show_mermaid(compiled).splitlines()
    assert text[2:7] == [
        "  ●····  route  switch     on input.kind",
        "  ·●···  one    graph      template answer",
        '                  ⇐ route   case "a"',
        "  ●····  two    transform",
        "                  ⇐ route   default",
    ]
    assert mermaid[2:7] == [
        '    root_route{"route<br/><small>switch<br/>input.kind</small>"}:::transform',
        '    root_one[/"one<br/><small>graph answer</small>"/]:::code',
        '    root_two["two<br/><small>transform</small>"]:::transform',
        '    root_route == "case #quot;a#quot;" ==> root_one',
        '    root_route == "default" ==> root_two',
    ]
    assert '  root_one -. "once" .-> t_answer' in mermaid
