"""What the compiler says of nodes that run holds in every execution. All are tried, by the engine's own rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from decurion_crds.compile.conditions import NOTHING, Conditions, Known
from decurion_crds.compile.draft import GraphDraft, ScopeDraft
from decurion_crds.compile.refs import Around, Module
from decurion_crds.compile.report import Report
from decurion_crds.compile.resolve import resolve
from decurion_crds.compiled import SWITCH_OUTPUT, Node, Scope
from decurion_crds.v1alpha1 import TaskGraph

META = {"apiVersion": "decurion.dev/v1alpha1", "kind": "TaskGraph", "metadata": {"name": "g"}}
MOST = 6


@st.composite
def scopes(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Nodes `a0`, `a1`, … in the order of time; each is a switch over later ones, or has a value."""
    count = draw(st.integers(2, MOST))
    free = set(range(count))
    nodes: list[dict[str, Any]] = []
    for i in range(count):
        after = draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set()
        node: dict[str, Any] = {"name": f"a{i}", "after": [f"a{other}" for other in sorted(after)]}
        if draw(st.booleans()):
            node["when"] = "input.go"
        later = sorted(other for other in free if other > i)
        chooses = draw(st.booleans())
        if later and chooses:
            arms: list[list[str]] = [[], [], []]
            for other in draw(st.sets(st.sampled_from(later), min_size=1)):
                free.discard(other)
                arms[draw(st.integers(0, 2))].append(f"a{other}")
            cases = [{"equals": number, "nodes": names} for number, names in enumerate(arms[:2])]
            node["switch"] = {"value": "input.way", "cases": cases, "default": arms[2]}
            node["onFailure"] = draw(st.sampled_from(["fail", "skip"]))
        else:
            node["transform"] = {"v": "1"}
            if draw(st.booleans()):
                node["otherwise"] = {"v": "0"}
                node["onFailure"] = draw(st.sampled_from(["fail", "otherwise"]))
            else:
                node["onFailure"] = draw(st.sampled_from(["fail", "skip"]))
        nodes.append(node)
    return nodes


@dataclass
class Execution:
    """What came of each node: those that ran and did not fail, those that were skipped, the outputs."""

    done: set[str]
    skipped: set[str]
    outputs: dict[str, Any]
    arms: dict[str, int]


def drafted(nodes: list[dict[str, Any]]) -> ScopeDraft:
    graph = TaskGraph.model_validate({**META, "spec": {"input": {"go": {}, "way": {}}, "nodes": nodes}})
    report = Report(None)
    draft = GraphDraft("g")
    resolve(Module(graph), draft, Around(), report)
    scope = draft.root
    assert [finding.text() for finding in report.findings] == []
    return scope


def engine_scope(scope: ScopeDraft) -> Scope:
    """The scope as an engine sees it, as far as skips go."""
    nodes = [
        Node.model_validate(
            {
                "name": node.name,
                "kind": node.kind,
                "control": node.after,
                "choice": node.choice,
                "otherwise": {} if node.model.otherwise is not None else None,
                "output": SWITCH_OUTPUT if node.kind == "switch" else {},
                "timeoutSeconds": 1,
            }
        )
        for node in scope.nodes.values()
    ]
    return Scope(inputSchema={}, nodes=tuple(nodes), order=(), output={}, outputSchema={}, leaf=True)


def executions(draft: ScopeDraft) -> Iterator[Execution]:
    """Every execution that does not fail: whatever `when`, the switches and failures come to."""
    scope = engine_scope(draft)
    choices = []
    for node in draft.nodes.values():
        ways = [0, 1, 2] if node.model.switch is not None else [0]
        fates = ["ok"] + ["false"] * (node.model.when is not None) + ["fails"] * (node.model.on_failure != "fail")
        choices.append([(way, fate) for way in ways for fate in fates])
    for chosen in product(*choices):
        run = Execution(set(), set(), {}, {})
        for node, (way, fate) in zip(draft.nodes.values(), chosen, strict=True):
            passed = scope.passes_over(scope.by_name[node.name], skipped=run.skipped, outputs=run.outputs)
            replaced = node.model.otherwise is not None
            if passed or fate == "false" or (fate == "fails" and node.model.on_failure == "skip"):
                run.skipped.add(node.name)
                run.outputs[node.name] = "otherwise" if replaced else None
            elif fate == "fails":
                run.outputs[node.name] = "otherwise"
            else:
                run.done.add(node.name)
                block = node.model.switch
                run.outputs[node.name] = {"chosen": _arm(block, way)} if block is not None else "value"
                run.arms[node.name] = way
        yield run


def _arm(block: Any, way: int) -> list[str]:
    return list([case.nodes for case in block.cases][way] if way < len(block.cases) else block.default)


def _agrees(known: Known, run: Execution) -> bool:
    arms: Mapping[str, int] = known.arms
    return known.ran <= run.done and all(run.arms.get(switch) == arm for switch, arm in arms.items())


@given(nodes=scopes(), writers=st.sets(st.integers(0, MOST - 1)))
@settings(max_examples=150, deadline=None)
def test_what_is_known_holds_in_every_execution(nodes: list[dict[str, Any]], writers: set[int]) -> None:
    draft = drafted(nodes)
    conditions = Conditions(draft)
    names = list(draft.nodes)
    excluded = {(a, b) for a in names for b in names if conditions.exclude(a, b)}
    writing = {f"a{i}" for i in writers} & set(names)
    one_at_last = conditions.one_runs(writing, NOTHING, exhausted=())
    for run in executions(draft):
        assert not run.done & conditions.impossible
        assert not any(a in run.done and b in run.done for a, b in excluded)
        assert not one_at_last or writing & run.done
        for place, reader in enumerate(names):
            if reader not in run.done:
                continue
            known = conditions.known(reader)
            before = names[:place]
            assert _agrees(known, run)
            for other in before:
                assert conditions.may_be_none(other, known) or run.outputs[other] is not None
            if conditions.one_runs(writing & set(before), known, exhausted=()):
                assert writing & set(before) & run.done


def test_what_holds_is_known_where_it_matters() -> None:
    """The other way round, in the forms that people write: else nothing known would do."""
    draft = drafted(
        [
            {"name": "s", "switch": {"value": "input.way", "cases": [{"equals": 1, "nodes": ["a"]}], "default": ["b"]}},
            {"name": "a", "transform": {"v": "1"}},
            {"name": "b", "transform": {"v": "1"}},
            {"name": "then", "after": ["a"], "transform": {"v": "1"}},
            {"name": "both", "after": ["a", "b"], "transform": {"v": "1"}},
        ]
    )
    conditions = Conditions(draft)
    assert conditions.known("then") == Known({"s": 0}, frozenset({"s", "a"}))
    assert conditions.known("both") == Known({}, frozenset({"s"}))
    assert conditions.exclude("then", "b")
    assert not conditions.may_be_none("a", conditions.known("then"))
    assert conditions.one_runs({"a", "b"}, NOTHING, exhausted=())
    assert conditions.one_runs({"a"}, NOTHING, exhausted=()) is False
