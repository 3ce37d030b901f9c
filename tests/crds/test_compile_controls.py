"""Switches, graphs, `onFailure` and `failFast`: what they become, and what is refused."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from decurion_crds.compile import Checker, Compilation, compile_graph
from decurion_crds.compile.templates import MAX_PATH, MAX_UNFOLDED
from decurion_crds.compiled import SWITCH_OUTPUT, CompiledGraph, GraphBlock, Node, Scope, SwitchCase
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import TaskGraph, parse_resource
from decurion_ledger.path import MAX_TEXT

META = {"apiVersion": "decurion.dev/v1alpha1", "metadata": {"name": "g"}}


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def compilation(checker: Checker, text: str) -> Compilation:
    body = textwrap.indent(textwrap.dedent(text).strip("\n"), "  ")
    [document] = load_text(f"kind: TaskGraph\nspec:\n{body}", "g.yaml").documents
    graph = TaskGraph.model_validate({**META, "kind": "TaskGraph", "spec": document.raw["spec"]})
    return compile_graph(graph, llms={}, checker=checker)


def compiled(checker: Checker, text: str) -> CompiledGraph:
    result = compilation(checker, text)
    assert [finding.text() for finding in result.findings] == []
    return result.result()


def told(checker: Checker, text: str) -> list[str]:
    return [finding.text() for finding in compilation(checker, text).findings]


ROUTER = """
input: {kind: {enum: [refund, question, spam]}, text: {type: string}}
nodes:
  - name: route
    switch:
      value: input.kind
      cases:
        - {equals: refund, nodes: [find, pay]}
        - {equals: question, nodes: [reply]}
        - {equals: spam, nodes: []}
  - {name: find, with: {t: input.text}, transform: {order: t.strip()}}
  - {name: pay, with: {order: nodes.find.output.order}, transform: {text: "'paid ' + order"}}
  - {name: reply, with: {t: input.text}, transform: {text: "'re: ' + t"}, otherwise: {text: "'none'"}}
output:
  paid: nodes.pay.output.text if nodes.pay.output is not None else ''
  reply: nodes.reply.output.text
"""


def test_a_switch_is_decided_before_the_nodes_of_its_cases(checker: Checker) -> None:
    graph = compiled(checker, ROUTER)
    root = graph.root
    assert root.order == ("route", "find", "pay", "reply")
    route = root.by_name["route"]
    assert (route.kind, route.output, route.timeout_seconds) == ("switch", SWITCH_OUTPUT, 1.0)
    assert route.reads == ("input.kind",)
    assert route.switch is not None
    assert route.switch.cases == (
        SwitchCase(equals="refund", nodes=("find", "pay")),
        SwitchCase(equals="question", nodes=("reply",)),
        SwitchCase(equals="spam"),
    )
    pay = root.by_name["pay"]
    assert (pay.choice, pay.after, pay.control, pay.parents) == ("route", ("route", "find"), (), ("route", "find"))
    assert root.leaf
    assert CompiledGraph.model_validate(graph.to_json()).digest == graph.digest


def test_a_node_of_a_case_reads_another_of_its_case_without_a_guard_and_nobody_else_does(checker: Checker) -> None:
    """That `find` ran is known in `pay`; the output above reads `pay` behind a guard, and `reply` by its otherwise."""
    spec = ROUTER.replace(" if nodes.pay.output is not None else ''", "")
    assert told(checker, spec) == [
        "output.paid [EXPR-NONE] nodes.pay.output may be None here; write (nodes.pay.output or …), or … if "
        "nodes.pay.output is not None else …"
    ]


@pytest.mark.parametrize(
    ("value", "chosen"),
    [("a", ["x"]), (1, ["w"]), (1.0, ["w"]), (True, ["z"]), (False, ["d"]), ("1", ["d"]), (None, ["d"])],
)
def test_a_value_chooses_the_case_that_equals_it(checker: Checker, value: object, chosen: list[str]) -> None:
    root = compiled(
        checker,
        """
        input: {"v?": {type: [string, number, boolean]}}
        nodes:
          - name: s
            switch:
              value: input.v
              cases: [{equals: a, nodes: [x]}, {equals: 1, nodes: [w]}, {equals: true, nodes: [z]}]
              default: [d]
          - {name: x, transform: {v: "1"}, otherwise: {v: "0"}}
          - {name: w, transform: {v: "1"}, otherwise: {v: "0"}}
          - {name: z, transform: {v: "1"}, otherwise: {v: "0"}}
          - {name: d, transform: {v: "1"}, otherwise: {v: "0"}}
        output: {v: nodes.x.output.v + nodes.w.output.v + nodes.z.output.v + nodes.d.output.v}
        """,
    ).root
    switch = root.by_name["s"].switch
    assert switch is not None
    assert switch.decide(value) == {"value": value, "chosen": chosen}


@pytest.mark.parametrize(
    ("node", "skipped", "outputs", "passed"),
    [
        ("pay", set(), {"route": {"chosen": ["find", "pay"]}}, False),
        ("pay", set(), {"route": {"chosen": ["reply"]}}, True),
        ("pay", {"route"}, {"route": None}, True),
        ("last", {"pay"}, {}, True),
        ("last", set(), {}, False),
        ("free", {"pay", "reply"}, {}, False),
        ("route", set(), {}, False),
    ],
)
def test_what_passes_a_node_over(
    checker: Checker, node: str, skipped: set[str], outputs: dict[str, Any], passed: bool
) -> None:
    spec = ROUTER.replace(
        "output:\n",
        "  - {name: last, after: [pay], transform: {v: '1'}}\n"
        "  - {name: free, after: [pay, reply], transform: {v: '1'}}\n"
        "output:\n  last: nodes.last.output\n  free: nodes.free.output.v\n",
    )
    root: Scope = compiled(checker, spec).root
    assert root.passes_over(root.by_name[node], skipped=skipped, outputs=outputs) is passed


def test_nodes_of_different_cases_write_one_channel_and_its_reader_follows_all(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        input: {urgent: {type: boolean}}
        state: [{name: answer, schema: {type: string}}]
        nodes:
          - {name: send, with: {a: state.answer}, transform: {text: a.upper()}}
          - name: route
            switch: {value: input.urgent, cases: [{equals: true, nodes: [call]}, {equals: false, nodes: [mail]}]}
          - {name: call, transform: {v: "'call'"}, writes: {answer: output.v}}
          - {name: mail, transform: {v: "'mail'"}, writes: {answer: output.v}}
        output: {text: nodes.send.output.text}
        """,
    ).root
    assert root.by_name["send"].after == ("call", "mail")
    assert root.order == ("route", "call", "mail", "send")


CHANNEL = """
input: {kind: {type: string}, m: {type: integer}}
state: [{name: answer, schema: {type: string}}]
nodes:
  - name: route
    switch: {value: input.kind, cases: [{equals: a, nodes: [x]}], default: [w]}
  - {name: x, transform: {v: "'x'"}, writes: {answer: output.v}}
  - {name: w, transform: {v: "'w'"}, writes: {answer: output.v}}
output: {text: state.answer.upper()}
"""


@pytest.mark.parametrize(
    ("old", "new", "sure"),
    [
        ("", "", True),
        ("], default: [w]", ", {equals: b, nodes: [w]}]", False),
        ("{name: w, ", "{name: w, when: input.m > 1, ", False),
        ("{name: w, ", "{name: w, onFailure: skip, ", False),
        ("- name: route\n", "- name: route\n    when: input.m > 1\n", False),
        ("- name: route\n", "- name: route\n    onFailure: skip\n", False),
        ("value: input.kind, ", "value: input.kind, ", True),
        ("{type: string}, m", "{enum: [a, b]}, m", True),
    ],
)
def test_a_channel_is_written_for_sure_when_every_case_writes_it(
    checker: Checker, old: str, new: str, sure: bool
) -> None:
    found = told(checker, CHANNEL.replace(old, new))
    assert [line for line in found if "EXPR-NONE" in line] == (
        []
        if sure
        else [
            "output.text [EXPR-NONE] state.answer may be None here; write (state.answer or …), or … if state.answer is "
            "not None else …"
        ]
    )


def test_cases_that_name_every_member_of_an_enum_need_no_default(checker: Checker) -> None:
    spec = CHANNEL.replace("{type: string}, m", "{enum: [a, b]}, m").replace("default: [w]", "")
    spec = spec.replace("cases: [{equals: a, nodes: [x]}]", "cases: [{equals: a, nodes: [x]}, {equals: b, nodes: [w]}]")
    assert told(checker, spec) == []


def test_a_switch_inside_a_case_of_another(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        input: {a: {type: string}, b: {type: string}}
        state: [{name: out, schema: {type: string}}]
        nodes:
          - {name: outer, switch: {value: input.a, cases: [{equals: x, nodes: [inner]}], default: [z]}}
          - {name: inner, switch: {value: input.b, cases: [{equals: x, nodes: [p]}], default: [q]}}
          - {name: p, transform: {v: "'p'"}, writes: {out: output.v}}
          - {name: q, transform: {v: "'q'"}, writes: {out: output.v}}
          - {name: z, transform: {v: "'z'"}, writes: {out: output.v}}
        output: {text: state.out.upper()}
        """,
    ).root
    assert root.by_name["p"].choice == "inner"
    assert root.by_name["inner"].choice == "outer"


def test_what_follows_only_nodes_of_a_case_belongs_to_it(checker: Checker) -> None:
    """`late` runs only where `x` ran, so it excludes `w` and reads `x` without a guard."""
    assert (
        told(
            checker,
            """
            input: {a: {type: string}}
            state: [{name: out, schema: {type: string}}]
            nodes:
              - {name: s, switch: {value: input.a, cases: [{equals: x, nodes: [x]}], default: [w]}}
              - {name: x, transform: {v: "'x'"}}
              - {name: late, after: [x], with: {v: nodes.x.output.v}, transform: {v: v}, writes: {out: output.v}}
              - {name: w, transform: {v: "'w'"}, writes: {out: output.v}}
            output: {text: state.out or ''}
            """,
        )
        == []
    )


def test_otherwise_keeps_a_skip_from_spreading_so_it_says_nothing_of_what_follows(checker: Checker) -> None:
    spec = """
        input: {a: {type: string}}
        state: [{name: out, schema: {type: string}}]
        nodes:
          - {name: s, switch: {value: input.a, cases: [{equals: x, nodes: [x]}], default: [w]}}
          - {name: x, transform: {v: "'x'"}, otherwise: {v: "'x'"}}
          - {name: late, after: [x], with: {v: nodes.x.output.v}, transform: {v: v}, writes: {out: output.v}}
          - {name: w, transform: {v: "'w'"}, writes: {out: output.v}}
        output: {text: state.out}
        """
    assert told(checker, spec) == [
        "nodes.w.writes.out [WRITE-RACE] late and w write out in no order, so the result depends on time; order them "
        "by after"
    ]


def test_what_is_read_in_place_of_a_skipped_node_may_be_missing_for_the_same_cause(checker: Checker) -> None:
    """`b` runs only where `a` ran; its `otherwise` is for where it did not."""
    spec = """
        input: {v: {type: integer}}
        nodes:
          - {name: a, when: input.v > 1, with: {v: input.v}, transform: {v: v}}
          - {name: b, after: [a], with: {v: nodes.a.output.v}, transform: {v: v}, otherwise: {v: nodes.a.output.v}}
        output: {v: nodes.b.output.v}
        """
    assert told(checker, spec) == [
        "nodes.b.otherwise.v [EXPR-NONE] nodes.a.output may be None here; write (nodes.a.output or …), or … if "
        "nodes.a.output is not None else …"
    ]


def test_a_node_with_otherwise_may_not_have_written(checker: Checker) -> None:
    spec = """
        input: {v: {type: integer}}
        state: [{name: last, schema: {type: integer}}]
        nodes:
          - name: a
            when: input.v > 1
            with: {v: input.v}
            transform: {v: v}
            writes: {last: output.v}
          - {name: b, after: [a], with: {last: state.last}, transform: {v: last + 1}}
        output: {v: nodes.b.output}
        """
    assert told(checker, spec) == []
    [finding] = told(checker, spec.replace("when:", "otherwise: {v: '0'}\n            when:"))
    assert finding.startswith("nodes.b.transform.v [EXPR-NONE] ")


def test_a_reader_waits_for_no_writer_of_another_case(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        input: {a: {type: string}}
        state: [{name: out, schema: {type: string}, initial: ""}]
        nodes:
          - {name: s, switch: {value: input.a, cases: [{equals: x, nodes: [reader]}], default: [writer]}}
          - {name: reader, with: {v: state.out}, transform: {v: v}}
          - {name: writer, transform: {v: "'w'"}, writes: {out: output.v}}
        output: {v: nodes.reader.output, w: state.out}
        """,
    ).root
    assert root.by_name["reader"].after == ("s",)


@pytest.mark.parametrize(
    ("otherwise", "due"),
    [
        ("'none'", []),
        ("input.text", []),
        ("input.size", ['nodes.a.otherwise.v [OUTPUT-TYPE] the value does not fit: integer where "done" is due; ']),
    ],
)
def test_another_text_may_stand_for_a_constant_one(checker: Checker, otherwise: str, due: list[str]) -> None:
    found = told(
        checker,
        f"""
        input: {{text: {{type: string}}, size: {{type: integer}}}}
        nodes: [{{name: a, when: input.size > 1, transform: {{v: "'done'"}}, otherwise: {{v: "{otherwise}"}}}}]
        output: {{v: nodes.a.output.v.upper()}}
        """,
    )
    assert [line.partition("change")[0] for line in found] == due


GRAPH = """
input: {text: {type: string}, texts: {type: array, items: {type: string}}}
nodes:
  - {name: review, with: {text: input.text}, graph: {template: polish}}
  - {name: all, map: {items: input.texts, as: text, template: twice}}
output: {text: nodes.review.output.text, all: "[one.text for one in nodes.all.output.items]"}
templates:
  - name: polish
    input: {text: {type: string}, "note?": {type: string}}
    nodes:
      - {name: draft, with: {t: input.text, note: input.note}, transform: {v: "t + (note or '')"}}
    output: {text: nodes.draft.output.v}
  - name: twice
    input: {text: {type: string}}
    nodes:
      - {name: first, with: {text: input.text}, graph: {template: polish}}
      - {name: second, with: {text: nodes.first.output.text, note: "'!'"}, graph: {template: polish}}
    output: {text: nodes.second.output.text}
"""


def test_a_graph_runs_a_template_on_its_with_and_has_its_output(checker: Checker) -> None:
    graph = compiled(checker, GRAPH)
    review = graph.root.by_name["review"]
    assert (review.kind, review.graph, review.template) == ("graph", GraphBlock(template="polish"), "polish")
    assert review.output == graph.templates["polish"].output_schema
    assert review.output["properties"] == {"text": {"type": "string"}}
    assert not graph.root.leaf
    assert graph.templates["polish"].leaf
    assert graph.templates["twice"].leaf
    assert CompiledGraph.model_validate(graph.to_json()).digest == graph.digest


def test_a_scope_that_reaches_a_map_through_a_graph_is_no_leaf(checker: Checker) -> None:
    graph = compiled(
        checker,
        """
        input: {rows: {type: array, items: {type: array, items: {type: integer}}}}
        nodes: [{name: all, map: {items: input.rows, as: row, template: outer}}]
        output: {v: "[one.v for one in nodes.all.output.items]"}
        templates:
          - name: outer
            input: {row: {type: array, items: {type: integer}}}
            nodes: [{name: inner, with: {row: input.row}, graph: {template: middle}}]
            output: {v: nodes.inner.output.v}
          - name: middle
            input: {row: {type: array, items: {type: integer}}}
            nodes: [{name: each, map: {items: input.row, template: one}}]
            output: {v: nodes.each.output.total}
          - name: one
            input: {item: {type: integer}}
            nodes: [{name: leaf, with: {i: input.item}, transform: {v: i}}]
            output: {v: nodes.leaf.output.v}
        """,
    )
    assert {name: scope.leaf for name, scope in graph.templates.items()} == {
        "middle": False,
        "one": True,
        "outer": False,
    }


def test_the_name_of_a_template_decides_nothing(checker: Checker) -> None:
    before, after = compiled(checker, GRAPH), compiled(checker, GRAPH.replace("polish", "shine"))
    assert before.root.by_name["review"].digest == after.root.by_name["review"].digest


def test_digests_tell_of_a_change_inside_a_graph_and_in_a_switch(checker: Checker) -> None:
    before, after = compiled(checker, GRAPH), compiled(checker, GRAPH.replace("t + (note", "t + ' ' + (note"))
    assert before.root.by_name["review"].digest != after.root.by_name["review"].digest
    plain = compiled(checker, ROUTER).root
    moved = compiled(checker, ROUTER.replace("nodes: [find, pay]", "nodes: [pay, find]")).root
    assert plain.by_name["route"].digest != moved.by_name["route"].digest
    assert plain.by_name["pay"].digest == moved.by_name["pay"].digest


def test_what_is_not_written_leaves_no_trace_in_a_digest() -> None:
    """So graphs that use none of this keep their digests."""
    node = Node.model_validate(
        {"name": "a", "kind": "map", "map": {"template": "t"}, "output": {}, "timeoutSeconds": 1}
    )
    written = node.to_json()
    assert written.keys().isdisjoint({"onFailure", "choice", "graph", "switch"})
    assert "failFast" not in written["map"]


FAILING = """
input: {m: {type: integer}}
nodes:
  - {name: a, onFailure: skip, with: {m: input.m}, transform: {v: 1 // m}}
  - {name: b, after: [a], with: {v: nodes.a.output.v}, transform: {v: v}}
output: {v: nodes.a.output.v if nodes.a.output else 0, b: nodes.b.output}
"""


def test_a_node_that_fails_may_be_skipped_and_its_readers_have_to_say_what_then(checker: Checker) -> None:
    assert compiled(checker, FAILING).root.by_name["a"].on_failure == "skip"
    assert told(checker, FAILING.replace(" if nodes.a.output else 0", "")) == [
        "output.v [EXPR-NONE] nodes.a.output may be None here; write (nodes.a.output or …), or … if nodes.a.output is "
        "not None else …"
    ]
    with_otherwise = FAILING.replace("onFailure: skip", 'onFailure: otherwise, otherwise: {v: "0"}')
    root = compiled(checker, with_otherwise.replace(" if nodes.a.output else 0", "")).root
    assert root.by_name["a"].on_failure == "otherwise"


def test_a_map_says_whether_it_fails_at_once(checker: Checker) -> None:
    spec = GRAPH.replace("as: text, template: twice", "as: text, template: twice, failFast: true")
    assert compiled(checker, GRAPH).root.by_name["all"].map.fail_fast is False  # type: ignore[union-attr]
    assert compiled(checker, spec).root.by_name["all"].map.fail_fast is True  # type: ignore[union-attr]


REFUSED: dict[str, tuple[str, tuple[str, str], list[str]]] = {
    "unknown node of a case": (
        ROUTER,
        ("nodes: [reply]", "nodes: [replay]"),
        ['nodes.route.switch.cases[1].nodes[0] [REF-MISSING] there is no node "replay"; did you mean "reply"?'],
    ),
    "unknown node of the default": (
        CHANNEL,
        ("default: [w]", "default: [w, nobody]"),
        ['nodes.route.switch.default[1] [REF-MISSING] there is no node "nobody"; the nodes here are x and w'],
    ),
    "a node twice in a case": (
        ROUTER,
        ("[find, pay]", "[find, pay, find]"),
        ["nodes.route.switch.cases[0].nodes[2] [DUPLICATE-NAME] find stands here twice; remove one"],
    ),
    "a node in two cases": (
        ROUTER,
        ("nodes: [reply]", "nodes: [reply, find]"),
        [
            "nodes.route.switch.cases[1].nodes[1] [DUPLICATE-NAME] find stands in another case too, and runs for one; "
            "name it once, or write a second node"
        ],
    ),
    "a node in two switches": (
        ROUTER,
        (
            "output:\n",
            "  - {name: other, switch: {value: input.text, cases: [{equals: a, nodes: [pay]}]}}\noutput:\n",
        ),
        [
            "nodes.other.switch.cases[0].nodes[0] [DUPLICATE-NAME] pay stands in a case of route too; name it in one "
            "switch, and put the other condition into its when"
        ],
    ),
    "a case twice": (
        CHANNEL,
        ("nodes: [x]}]", "nodes: [x]}, {equals: a, nodes: []}]"),
        [
            'nodes.route.switch.cases[1].equals [UNREACHABLE] "a" has a case above, so this one is never chosen; put '
            "its nodes there"
        ],
    ),
    "misspelt member": (
        ROUTER,
        ("equals: question", "equals: questoin"),
        ['nodes.route.switch.cases[1].equals [EXPR-TYPE] this is never "questoin"; did you mean "question"?'],
    ),
    "misspelt member, where a case is missing then": (
        CHANNEL.replace("{type: string}, m", "{enum: [ask, tell]}, m"),
        (
            "cases: [{equals: a, nodes: [x]}], default: [w]",
            "cases: [{equals: tel, nodes: [x]}, {equals: ask, nodes: [w]}]",
        ),
        ['nodes.route.switch.cases[0].equals [EXPR-TYPE] this is never "tel"; did you mean "tell"?'],
    ),
    "no member": (
        ROUTER,
        ("equals: question", "equals: complaint"),
        [
            'nodes.route.switch.cases[1].equals [EXPR-TYPE] this is never "complaint"; it is one of refund, question '
            "or spam"
        ],
    ),
    "a number for a text": (
        CHANNEL,
        ("equals: a", "equals: 7"),
        ["nodes.route.switch.cases[0].equals [EXPR-TYPE] this is never 7: the value is string; put it into quotes"],
    ),
    "a text for a number": (
        CHANNEL,
        ("value: input.kind, cases: [{equals: a", 'value: input.m, cases: [{equals: "7"'),
        [
            'nodes.route.switch.cases[0].equals [EXPR-TYPE] this is never "7": the value is integer; write it without '
            "quotes"
        ],
    ),
    "a truth value for a number": (
        CHANNEL,
        ("value: input.kind, cases: [{equals: a", "value: input.m, cases: [{equals: true"),
        [
            "nodes.route.switch.cases[0].equals [EXPR-TYPE] this is never true: the value is integer; write a case "
            "that it can be"
        ],
    ),
    "a value that is no scalar": (
        CHANNEL,
        ("value: input.kind", 'value: "[input.kind]"'),
        [
            "nodes.route.switch.value [EXPR-TYPE] a switch compares texts, numbers and truth values, and this is list "
            "of string; compute one of these"
        ],
    ),
    "a default that is never due": (
        ROUTER,
        ("{equals: spam, nodes: []}", "{equals: spam, nodes: []}\n      default: [find]"),
        [
            "nodes.route.switch.default[0] [DUPLICATE-NAME] find stands in another case too, and runs for one; name it "
            "once, or write a second node",
            'nodes.route.switch.default [UNREACHABLE] the cases name all that the value can be ("refund" or "question" '
            'or "spam"), so default is never chosen; remove it',
        ],
    ),
    "wrong value": (
        CHANNEL,
        ("value: input.kind", "value: input.kidn"),
        [
            'nodes.route.switch.value [EXPR-FIELD] input has no field "kidn"; did you mean "kind"?',
        ],
    ),
    "fields that a switch does not have": (
        CHANNEL,
        ("- name: route\n", "- name: route\n    with: {k: input.kind}\n    output: {v: {type: string}}\n"),
        [
            "nodes.route.with [FIELD-UNKNOWN] a switch has no with: its value reads input, state and nodes itself; "
            "remove it",
            "nodes.route.output [FIELD-UNKNOWN] a switch has no output: what it chooses is no value; remove it",
        ],
    ),
    "the output of a switch": (
        ROUTER,
        ("reply: nodes.reply", "route: nodes.route.output.chosen\n  reply: nodes.reply"),
        [
            "output.route [EXPR-FIELD] a switch has no output; read the value that it switches on, or the nodes of "
            "its cases"
        ],
    ),
    "a switch that waits for its case": (
        CHANNEL,
        ("value: input.kind", "value: input.kind + nodes.x.output.v"),
        [
            "nodes.route.switch.value [CYCLE] route → x → route wait for one another: route reads nodes.x "
            "(nodes.route.switch.value), x stands in a case of route (nodes.route.switch.cases[0].nodes[0]); remove "
            "one of these"
        ],
    ),
    "a switch that chooses itself": (
        CHANNEL,
        ("default: [w]", "default: [w, route]"),
        [
            "nodes.route.switch.default[1] [CYCLE] route waits for itself: it stands in a case of route; read another "
            "node, or remove it"
        ],
    ),
    "a switch that never runs": (
        CHANNEL,
        ("- name: route\n", '- name: route\n    when: "False"\n'),
        [
            "nodes.route.when [UNREACHABLE] route can never run: its when is always false; remove the node, or write a "
            "condition",
            "nodes.route.switch.cases[0].nodes[0] [UNREACHABLE] x can never run: route, which chooses it, never does; "
            "remove one of them",
            "nodes.route.switch.default[0] [UNREACHABLE] w can never run: route, which chooses it, never does; remove "
            "one of them",
        ],
    ),
    "after nodes of another case": (
        ROUTER,
        ("{name: reply, ", "{name: reply, after: [pay], "),
        [
            "nodes.reply.after [UNREACHABLE] reply can never run: it comes only after nodes of other cases; name it "
            "in their case, or remove its after"
        ],
    ),
    "unknown template of a graph": (
        GRAPH,
        (
            "{text: input.text}, graph: {template: polish}}\n  - {name: all",
            "{text: input.text}, graph: {template: polsh}}\n  - {name: all",
        ),
        ['nodes.review.graph.template [REF-MISSING] there is no template "polsh"; did you mean "polish"?'],
    ),
    "a name too many": (
        GRAPH,
        ("{name: review, with: {text: input.text}", "{name: review, with: {text: input.text, nota: input.text}"),
        ['nodes.review.with.nota [FIELD-UNKNOWN] the template polish has no input "nota"; did you mean "note"?'],
    ),
    "a name too few": (
        GRAPH,
        ("{name: review, with: {text: input.text}", "{name: review, with: {note: input.text}"),
        ['nodes.review.with [FIELD-MISSING] the template polish needs the input "text"; give it by with'],
    ),
    "a name of another type": (
        GRAPH,
        ("{name: review, with: {text: input.text}", "{name: review, with: {text: input.texts}"),
        [
            "nodes.review.with.text [EXPR-TYPE] the value does not fit: list of string where string is due; change the "
            "expression or the declaration"
        ],
    ),
    "an output that the template does not have": (
        GRAPH,
        (
            "graph: {template: polish}}\n  - {name: all",
            "graph: {template: polish}, output: {text: {type: integer}}}\n  - {name: all",
        ),
        [
            "nodes.review.output [OUTPUT-TYPE] the value does not fit: text: string where integer is due; change the "
            "expression or the declaration"
        ],
    ),
    "a template that runs itself": (
        GRAPH,
        (
            "output: {text: nodes.draft.output.v}",
            "  - {name: again, with: {text: input.text}, graph: {template: twice}}\n"
            "    output: {text: nodes.draft.output.v + nodes.again.output.text}",
        ),
        [
            "templates.twice.nodes.first.graph.template [CYCLE] templates contain one another (polish → twice → "
            "polish), so there is no end; name another template",
        ],
    ),
    "otherwise without one": (
        FAILING,
        ("onFailure: skip", "onFailure: otherwise"),
        [
            "nodes.a.onFailure [FIELD-MISSING] there is no otherwise to go on with when the node fails; add otherwise, "
            "or write onFailure: skip"
        ],
    ),
    "otherwise with skip": (
        FAILING,
        ("onFailure: skip", 'onFailure: skip, otherwise: {v: "0"}'),
        [
            "nodes.a.onFailure [FIELD-VALUE] a node that fails and is skipped has no output; write onFailure: "
            "otherwise, or remove otherwise"
        ],
    ),
    "otherwise of a switch": (
        ROUTER,
        ("- name: route\n", "- name: route\n    onFailure: otherwise\n"),
        [
            "nodes.route.onFailure [FIELD-MISSING] there is no otherwise to go on with when the node fails; write "
            "onFailure: skip"
        ],
    ),
    "two writers of one case": (
        CHANNEL,
        ("nodes: [x]}], default: [w]", "nodes: [x, w]}]"),
        [
            "nodes.w.writes.answer [WRITE-RACE] x and w write answer in no order, so the result depends on time; order "
            "them by after",
            "output.text [EXPR-NONE] state.answer may be None here; write (state.answer or …), or … if state.answer "
            "is not None else …",
        ],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(checker: Checker, name: str) -> None:
    spec, (old, new), due = REFUSED[name]
    assert old in spec
    assert told(checker, spec.replace(old, new)) == due


@pytest.mark.parametrize(
    ("node", "due"),
    [
        (
            "{name: a, switch: {value: input.k, cases: [{equals: [1], nodes: []}]}}",
            "nodes.a.switch.cases[0].equals [FIELD-TYPE] a case is a text, a number, or true or false; for anything "
            "else, write a value that computes one of these",
        ),
        (
            "{name: a, graph: {template: one, bind: {fast: slow}}}",
            "nodes.a.graph [FIELD-VALUE] bind goes with ref: a template shares the names of its graph; remove bind, or "
            "use another graph",
        ),
        (
            "{name: a, onFailure: ignore, transform: {v: '1'}}",
            'nodes.a.onFailure [FIELD-VALUE] "ignore" is not allowed here; write fail, skip or otherwise',
        ),
    ],
)
def test_a_form_that_is_wrong_is_refused_before_anything_is_compiled(node: str, due: str) -> None:
    [document] = load_text(f"kind: TaskGraph\nspec: {{nodes: [{node}]}}", "g.yaml").documents
    _, findings = parse_resource({**META, "kind": "TaskGraph", "spec": document.raw["spec"]})
    assert due in [finding.text() for finding in findings]


def nested(depth: int, width: int, *, name: str = "n") -> str:
    """Templates `t1` … inside one another, `width` of the next in each."""
    lines = ["nodes:", *_calls(1, width, name, "  "), "output: {v: " + f"nodes.{name}0.output.v" + "}", "templates:"]
    for level in range(1, depth + 1):
        calls = _calls(level + 1, width, name, "      ") if level < depth else []
        lines += [f"  - name: t{level}", "    nodes:", *calls, "      - {name: last, transform: {v: '1'}}"]
        reads = " + ".join(
            [f"nodes.{name}{i}.output.v" for i in range(width if calls else 0)] + ["nodes.last.output.v"]
        )
        lines.append(f"    output: {{v: {reads}}}")
    return "\n".join(lines)


def _calls(level: int, width: int, name: str, indent: str) -> list[str]:
    return [f"{indent}- {{name: {name}{i}, graph: {{template: t{level}}}}}" for i in range(width)]


def test_templates_inside_templates_are_bounded_by_what_they_unfold_to(checker: Checker) -> None:
    """Thirty-one levels of two come to two thousand million nodes; it is told once, where it becomes too much."""
    found = [line for line in told(checker, nested(31, 2)) if "UNUSED" not in line]
    assert found == [
        f"templates.t19.nodes.n1.graph.template [SPEC-TOO-LARGE] with the templates and graphs inside, there are more "
        f"than {MAX_UNFOLDED:,} nodes here; map over a list, or use fewer of them inside one another"
    ]
    assert [line for line in told(checker, nested(11, 2)) if "UNUSED" not in line] == []


def test_templates_inside_templates_are_bounded_by_the_paths_of_the_ledger(checker: Checker) -> None:
    assert MAX_PATH == MAX_TEXT
    found = [line for line in told(checker, nested(20, 1, name="n" * 60)) if "UNUSED" not in line]
    assert found == [
        f"templates.t3.nodes.{'n' * 60}0 [SPEC-TOO-LARGE] paths in the ledger get longer than 1,024 characters here; "
        "use shorter names, or fewer templates inside one another"
    ]


ORDERED = """
  state: [{name: all, schema: {type: array, items: {type: integer}}, merge: {rule: append, order: [b, a]}}]
  nodes:
    - {name: a, transform: {v: "1"}, writes: {all: "[output.v]"}}
    - {name: b, transform: {v: "2"}, writes: {all: "[output.v]"}}
  finally:
    - {name: f, with: {count: len(state.all)}, transform: {v: count}}
  output: {v: state.all}
"""


def test_an_order_of_writers_is_that_of_its_scope_and_not_of_what_its_finally_has(checker: Checker) -> None:
    assert compiled(checker, ORDERED).root.channels[0].order == ("b", "a")
    assert told(checker, ORDERED.replace("order: [b, a]", "order: [b, c]")) == [
        'state.all.merge.order[1] [REF-MISSING] no node "c" writes all; its writers are a and b'
    ]
