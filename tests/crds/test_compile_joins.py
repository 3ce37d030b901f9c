"""`join`: who races for a node, what is known of those that race, and what has surely ended when the node begins."""

from __future__ import annotations

import pytest

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import TaskGraph

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\nspec:\n"


def compiled(spec: str) -> tuple[CompiledGraph | None, list[str]]:
    """What became of a graph, and the codes and paths of the errors."""
    models, found = load_text(HEAD + spec, "g.yaml").parse()
    assert found == [], [finding.text() for finding in found]
    (graph,) = [model for _, model in models if isinstance(model, TaskGraph)]
    with Checker() as checker:
        compilation = compile_graph(graph, llms={}, checker=checker)
    return compilation.compiled, [f"{one.code} {one.path}" for one in compilation.findings if one.severity == "error"]


def spec(*nodes: str, state: str = "", output: str = "nodes.end.output.x") -> str:
    lines = "".join(f"    - {{{node}}}\n" for node in nodes)
    return f'  input: {{k: {{type: integer}}}}\n{state}  nodes:\n{lines}  output: {{x: "{output}"}}\n'


def plain(name: str, *, x: str = "1", more: str = "") -> str:
    return f"name: {name}, transform: {{x: '{x}'}}{more}"


FIRST = "[one.x for one in [nodes.a.output, nodes.b.output] if one][0]"
END = f"name: end, with: {{x: '{FIRST}'}}, transform: {{x: x}}"
CHANNEL = "  state: [{name: best, schema: {type: integer}}]\n"


def test_without_after_those_race_whose_output_is_read() -> None:
    found, errors = compiled(spec(plain("a"), plain("b"), END + ", join: {mode: any}"))
    assert errors == []
    assert found is not None
    join = found.root.by_name["end"].join
    assert join is not None
    assert (join.racers, join.count) == (("a", "b"), 1)


def test_with_after_whatever_else_is_read_is_waited_for() -> None:
    end = "name: end, after: [a, b], with: {x: nodes.c.output.x}, transform: {x: x}, join: {mode: quorum, count: 2}"
    found, errors = compiled(spec(plain("a"), plain("b"), plain("c"), end))
    assert errors == []
    assert found is not None
    node = found.root.by_name["end"]
    assert node.join is not None
    assert (node.join.racers, node.join.count, node.after) == (("a", "b"), 2, ("a", "b", "c"))


def test_all_is_what_a_node_does_anyway() -> None:
    with_all, errors = compiled(spec(plain("a"), plain("b"), END.replace(" if one", "") + ", join: {mode: all}"))
    without, _ = compiled(spec(plain("a"), plain("b"), END.replace(" if one", "")))
    assert errors == []
    assert with_all is not None
    assert without is not None
    assert with_all.digest == without.digest
    assert with_all.root.leaf


def test_no_runner_runs_a_scope_with_a_race_whole() -> None:
    found, _ = compiled(spec(plain("a"), plain("b"), END + ", join: {mode: any}"))
    assert found is not None
    assert not found.root.leaf


@pytest.mark.parametrize("more", ["", ", otherwise: {x: '0'}"])
def test_whoever_reads_one_that_races_takes_it_for_absent(more: str) -> None:
    beside = "name: beside, with: {x: nodes.a.output.x}, transform: {x: x}, writes: {best: output.x}"
    _, errors = compiled(
        spec(
            plain("a", more=more),
            plain("b"),
            END + ", join: {mode: any}",
            beside,
            state=CHANNEL.replace("integer", "integer"),
        )
    )
    assert errors == ["EXPR-NONE nodes.beside.with.x"]


@pytest.mark.parametrize(
    ("more", "sure"),
    [
        (["", ""], True),
        (["", ", when: input.k > 0"], True),
        ([", when: input.k > 0", ", when: input.k > 1"], False),
        (["", ", onFailure: skip"], True),
        ([", onFailure: skip", ", onFailure: skip"], False),
    ],
)
def test_the_node_surely_runs_or_fails_where_enough_surely_begin(more: list[str], sure: bool) -> None:
    nodes = [plain(name, more=rule) for name, rule in zip("ab", more, strict=True)]
    _, errors = compiled(spec(*nodes, END + ", join: {mode: any}"))
    assert errors == ([] if sure else ["EXPR-NONE output.x"])


WRITES = ", writes: {best: output.x}"


@pytest.mark.parametrize(
    ("join", "errors"),
    [
        ("join: {mode: any}", []),
        ("join: {mode: quorum, count: 1}", []),
        ("join: {mode: quorum, count: 2}", ["WRITE-RACE nodes.b.writes.best"]),
        ("join: {mode: all}", ["WRITE-RACE nodes.b.writes.best"]),
    ],
)
def test_of_those_that_race_for_any_one_writes(join: str, errors: list[str]) -> None:
    end = f"name: end, after: [a, b], with: {{x: state.best}}, transform: {{x: x}}, {join}"
    assert compiled(spec(plain("a", more=WRITES), plain("b", more=WRITES), end, state=CHANNEL))[1] == errors


def test_a_channel_that_every_possible_winner_writes_is_written() -> None:
    end = "name: end, after: [a, b], with: {x: state.best}, transform: {x: x}, join: {mode: any}"
    some = spec(plain("a", more=WRITES), plain("b"), end, state=CHANNEL, output="nodes.end.output.x + 1")
    assert compiled(some)[1] == ["EXPR-NONE output.x"]
    every = spec(
        plain("a", more=WRITES), plain("b", more=WRITES), end, state=CHANNEL, output="state.best + nodes.end.output.x"
    )
    assert compiled(every)[1] == []


def test_what_comes_before_only_some_that_race_may_still_be_at_work() -> None:
    """`early` comes before `a` alone: when `b` wins, it may still write."""
    nodes = [
        plain("early", more=WRITES),
        plain("a", more=", after: [early]"),
        plain("b"),
        END + ", join: {mode: any}",
        "name: late, after: [end], transform: {x: '2'}, writes: {best: output.x}",
    ]
    read = "nodes.end.output.x + (state.best or 0)"
    assert compiled(spec(*nodes, state=CHANNEL, output=read))[1] == ["WRITE-RACE nodes.late.writes.best"]
    nodes[2] = plain("b", more=", after: [early]")
    assert compiled(spec(*nodes, state=CHANNEL, output=read))[1] == []
