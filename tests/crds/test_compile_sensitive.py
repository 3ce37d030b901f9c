"""What is sensitive in a graph, and how that spreads. What is refused for it: `refused/sensitive`."""

from typing import Any

import pytest

from decurion_crds.compile import Checker, Module, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import TaskGraph

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\nspec:\n"
PLAIN = """  input: {a: {type: string}, b: {type: string}}
"""
ONE = """  templates:
    - name: one
      input: {x: {type: string}}
      nodes:
        - name: inner
          with: {x: input.x}
          transform: {t: x}
      output: {t: nodes.inner.output.t}
"""
OTHER = """---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: other}
spec:
  sensitive: [x]
  input: {x: {type: string}}
  nodes:
    - name: inner
      with: {x: input.x}
      transform: {t: x}
  output: {t: nodes.inner.output.t}
"""


@pytest.fixture(scope="module")
def checker() -> Any:
    with Checker() as checker:
        yield checker


def compiled(spec: str, checker: Checker) -> CompiledGraph:
    models, found = load_text(HEAD + spec, "g.yaml").parse()
    assert found == []
    graph, *others = [model for _, model in models if isinstance(model, TaskGraph)]
    done = compile_graph(graph, llms={}, graphs={other.name: Module(other) for other in others}, checker=checker)
    assert done.compiled is not None, [finding.text() for finding in done.findings]
    return done.compiled


def marks(graph: CompiledGraph) -> dict[str, str]:
    """`node: all | input` of what is sealed, with the template in front; `>name` of a scope whose output is."""
    found = {}
    for name, scope in {"": graph.root, **graph.templates}.items():
        at = f"{name}." if name else ""
        found |= {f"{at}{node.name}": str(node.sealed) for node in scope.nodes if node.sealed}
        found |= {f"{name or 'root'}>": "output"} if scope.sealed_output else {}
        found |= {f"{at}#{channel.name}": "channel" for channel in scope.channels if channel.sealed}
    return found


NODE = "    - {name: %s, with: {v: %s}, transform: {v: v}}\n"
CASES = {
    "nothing": (PLAIN + "  nodes:\n" + NODE % ("p", "input.a") + "  output: {v: nodes.p.output.v}\n", {}),
    "a chain, and what stands beside it": (
        "  sensitive: [a]\n"
        + PLAIN
        + "  nodes:\n"
        + NODE % ("p", "input.a")
        + NODE % ("q", "nodes.p.output.v")
        + NODE % ("r", "input.b")
        + "  output: {v: nodes.r.output.v, w: nodes.q.output.v}\n",
        {"p": "all", "q": "all", "root>": "output"},
    ),
    "a node that says no": (
        "  sensitive: [a]\n"
        + PLAIN
        + "  nodes:\n    - {name: p, sensitive: false, with: {v: input.a}, transform: {v: len(v)}}\n"
        + NODE % ("q", "nodes.p.output.v")
        + "  output: {v: nodes.q.output.v}\n",
        {"p": "input"},
    ),
    "a node that says yes": (
        PLAIN
        + "  nodes:\n    - {name: p, sensitive: true, with: {v: input.a}, transform: {v: v}}\n"
        + NODE % ("q", "nodes.p.output")
        + "  output: {v: nodes.q.output.v}\n",
        {"p": "all", "q": "all", "root>": "output"},
    ),
    "a condition, and what comes instead": (
        "  sensitive: [a]\n"
        + PLAIN
        + "  nodes:\n    - {name: p, when: input.a == 'x', otherwise: {v: input.b}, transform: {v: '1'}, "
        + "output: {v: {}}}\n  output: {v: nodes.p.output.v}\n",
        {"p": "all", "root>": "output"},
    ),
    "a channel": (
        "  sensitive: [a]\n"
        + PLAIN
        + "  state: [{name: c, schema: {type: string}, initial: ''}]\n  nodes:\n"
        + "    - {name: p, with: {v: input.b}, transform: {v: v}, writes: {c: input.a}}\n"
        + NODE % ("q", "state.c")
        + "  output: {v: nodes.q.output.v, w: nodes.p.output.v}\n",
        {"p": "all", "q": "all", "root>": "output", "#c": "channel"},
    ),
    "items, of which only their number is read": (
        "  sensitive: [a]\n"
        + PLAIN
        + "  nodes:\n    - {name: m, map: {items: '[input.a]', as: x, template: one}}\n"
        + "    - {name: c, sensitive: false, with: {i: nodes.m.output.items}, transform: {many: len(i)}}\n"
        + "  output: {many: nodes.c.output.many}\n"
        + ONE,
        {"m": "all", "c": "input", "one.inner": "all", "one>": "output"},
    ),
    "rounds that bring it in later": (
        "  sensitive: [a]\n"
        + PLAIN
        + "  nodes:\n    - name: l\n      with: {x: input.b}\n"
        + "      loop: {template: one, next: {x: input.a}, maxIterations: 2, onExhausted: succeed}\n"
        + "  output: {v: nodes.l.output.t}\n"
        + ONE,
        {"l": "all", "one.inner": "all", "one>": "output", "root>": "output"},
    ),
    "a template of two, of which one gives something sensitive": (
        "  sensitive: [a]\n"
        + PLAIN
        + "  nodes:\n    - {name: p, with: {x: input.a}, graph: {template: one}}\n"
        + "    - {name: q, with: {x: input.b}, graph: {template: one}}\n"
        + "  output: {v: nodes.p.output.t, w: nodes.q.output.t}\n"
        + ONE,
        {"p": "all", "q": "all", "one.inner": "all", "one>": "output", "root>": "output"},
    ),
    "finally": (
        "  sensitive: [a]\n"
        + PLAIN
        + "  nodes:\n"
        + NODE % ("p", "input.a")
        + "  output: {v: input.b, w: nodes.p.output.v}\n  finally:\n"
        + NODE % ("f", "str(nodes.p.output)")
        + NODE % ("g", "input.b"),
        {"p": "all", "finally.f": "all", "root>": "output"},
    ),
    "another graph that says so itself": (
        PLAIN
        + "  nodes:\n    - {name: p, with: {x: input.b}, graph: {ref: other}}\n  output: {v: nodes.p.output.t}\n"
        + OTHER,
        {"p": "all", "other.inner": "all", "other>": "output", "root>": "output"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_sensitive_spreads(case: str, checker: Checker) -> None:
    spec, wanted = CASES[case]
    graph = compiled(spec, checker)
    found = {name.replace("graph:", ""): mark for name, mark in marks(graph).items()}
    assert found == wanted
    assert graph.sealed is bool(wanted)


def test_the_digest_of_a_node_says_whether_it_is_sensitive_and_others_keep_theirs(checker: Checker) -> None:
    plain, _ = CASES["nothing"]
    before, after = compiled(plain, checker), compiled("  sensitive: [a]\n" + plain, checker)
    assert before.root.by_name["p"].digest != after.root.by_name["p"].digest
    other = compiled("  sensitive: [b]\n" + plain, checker)
    assert other.root.by_name["p"].digest == before.root.by_name["p"].digest
