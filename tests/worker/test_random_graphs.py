"""Random graphs of all kinds of nodes: one state, however the work is spread and wherever the run was cut.

Each value is an integer `v`, each template has the input `k`. In a scope at most one node may fail it: which of two
failures comes first depends on time. In the root none may, so that every run succeeds.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, open_store, verify
from manifests import compiled
from test_runs import Bench, _begin, _stores, put_all

DEEPEST = 3
Draw = Any


@dataclass
class Template:
    """One template as YAML lines. `wide`: its output is padded, so that a map of it may be a wide list."""

    name: str
    depth: int
    fallible: bool = False
    wide: bool = False
    text: str = ""


@dataclass
class Made:
    """One node. `reads` is an integer expression over its output, which may be None."""

    name: str
    reads: str
    lines: list[str]


class Writer:
    """Draws one graph."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.templates: list[Template] = []

    def pick(self, options: list[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def chance(self, of: int) -> bool:
        return bool(self.draw(st.integers(0, of - 1)) == of - 1)

    def spec(self) -> str:
        for depth in range(DEEPEST):
            for _ in range(self.draw(st.integers(1, 2))):
                self.templates.append(self.template(f"t{len(self.templates)}", depth))
        root = self.body("", depth=DEEPEST, fails=False)[0]
        used = self.used(root)
        templates = [template.text for template in self.templates if template.name in used]
        head = ["  templates:\n"] if templates else []
        return "".join(["  input: {k: {type: integer}}\n", root, *head, *templates])

    def used(self, text: str) -> set[str]:
        found = {t.name for t in self.templates if f"template: {t.name}" in text}
        for template in [t for t in self.templates if t.name in found]:
            found |= self.used(template.text)
        return found

    def template(self, name: str, depth: int) -> Template:
        made = Template(name, depth, wide=self.chance(3))
        pad = "\"'p' * 9000\"" if made.wide else "\"''\""
        body, made.fallible = self.body("    ", depth=depth, fails=True, more=f", pad: {pad}")
        made.text = f"    - name: {name}\n      input: {{k: {{type: integer}}}}\n" + body
        return made

    def body(self, indent: str, *, depth: int, fails: bool, more: str = "") -> tuple[str, bool]:
        """A scope without its input; whether it may fail."""
        nodes: list[Made] = []
        free = fails
        for i in range(self.draw(st.integers(1, 4 if depth else 3))):
            made, may_fail = self.node(f"n{i}", nodes, depth=depth, free=free)
            free = free and not may_fail
            nodes.append(made)
        switch = self.switch(nodes) if self.chance(2) else []
        writers = [n for n in nodes if any(line.startswith("writes:") for line in n.lines)]
        lines = (
            ["state: [{name: acc, schema: {type: array, items: {type: integer}}, merge: append}]"] if writers else []
        )
        lines += ["nodes:", *switch]
        for made in nodes:
            lines += [f"  - name: {made.name}", *(f"    {line}" for line in made.lines)]
        total = " + ".join(n.reads for n in nodes) + (" + sum(state.acc)" if writers else "")
        lines.append(f'output: {{v: "{total}"{more}}}')
        return "".join(f"{indent}  {line}\n" for line in lines), fails and not free

    def switch(self, nodes: list[Made]) -> list[str]:
        """A switch over some of the nodes that nothing of it reads."""
        chosen = [n for n in nodes if self.chance(2)]
        if not chosen:
            return []
        half = self.draw(st.integers(0, len(chosen)))
        one, other = [n.name for n in chosen[:half]], [n.name for n in chosen[half:]]
        if one and other:
            # A node of one case after a node of the other can never run: that is refused.
            for made in chosen:
                made.lines = [line for line in made.lines if not line.startswith("after:")]
        cases = f"[{{equals: 1, nodes: [{', '.join(one)}]}}]"
        default = f", default: [{', '.join(other)}]"
        if not one:
            cases, default = f"[{{equals: 0, nodes: [{', '.join(other)}]}}]", ""
        return ["  - name: pick", f'    switch: {{value: "input.k % 2", cases: {cases}{default if other else ""}}}']

    def node(self, name: str, before: list[Made], *, depth: int, free: bool) -> tuple[Made, bool]:
        """A node; whether it may fail its scope. `free`: it is allowed to."""
        kinds = ["code", *(["graph", "map", "map", "map"] if depth else ["code", "transform"])]
        kind = self.pick(kinds)
        given = " + ".join(["input.k", *(n.reads for n in before if self.chance(2))])
        lines: list[str] = []
        below = [t for t in self.templates if t.depth < depth]
        read = f"(nodes.{name}.output.v if nodes.{name}.output else 0)"
        instead = '{v: "-1"}'
        match kind:
            case "transform":
                lines += [f'with: {{a: "{given}"}}', 'transform: {v: "a % 1000 + 1"}']
                fallible = False
            case "code":
                fallible = self.chance(2)
                lines += [f'with: {{a: "{given}"}}', "code: |"]
                if fallible:
                    lines += [f"    if a % {self.pick([2, 3])} == 0:", "        raise ValueError('no')"]
                lines += ['    {"v": a % 1000 + 1}', "output: {v: {type: integer}}"]
            case "graph":
                template = self.pick(below)
                fallible = template.fallible
                lines += [f'with: {{k: "({given}) % 7"}}', f"graph: {{template: {template.name}}}"]
                instead = '{v: "-1", pad: "\'\'"}'
            case _:
                template = self.pick(below)
                count = self.pick([0, 1, 2, 5, 12]) if template.depth == 0 else self.pick([1, 2, 3])
                tolerate, fast, keyed = self.pick([0, 1, 99]), self.chance(3), self.chance(3)
                fallible = template.fallible and tolerate < count
                block = f'items: "[i + ({given}) % 5 for i in range({count})]", as: k, template: {template.name}'
                block += f", tolerate: {{count: {tolerate}}}" if tolerate else ""
                block += ", failFast: true" if fast else ""
                block += ', key: "str(k)"' if keyed else ""
                block += f", concurrency: {self.pick([1, 2])}" if self.chance(3) else ""
                lines.append(f"map: {{{block}}}")
                out = f"nodes.{name}.output"
                read = f"(sum([i.v for i in {out}.items]) + 1000 * len({out}.failures) if {out} else 0)"
                instead = '{items: "[]", failures: "[]", total: "0"}'
        if self.chance(3):
            lines.append(f'when: "input.k % 3 != {self.pick([0, 1])}"')
        after = [n.name for n in before if self.chance(4)]
        if after:
            lines.append(f"after: [{', '.join(after)}]")
        rule = self.pick(["fail", "skip", "otherwise"]) if fallible and free else self.pick(["skip", "otherwise"])
        if fallible and rule != "fail":
            lines.append(f"onFailure: {rule}")
        if (fallible and rule == "otherwise") or (rule == "otherwise" and self.chance(2)):
            lines.append(f"otherwise: {instead}")
        if self.chance(3):
            value = "output.v" if kind != "map" else "output.total"
            lines.append(f'writes: {{acc: "[{value}]"}}')
        return Made(name, read, lines), fallible and rule == "fail"


@st.composite
def graphs(draw: Draw) -> str:
    return Writer(draw).spec()


async def _states(graph: CompiledGraph, k: int, rng: random.Random) -> None:
    async with Bench() as bench:
        whole, log = await bench.run(graph, {"k": k}), await bench.log()
        blobs = await bench.blobs()
        assert whole.projection()["phase"] == "Succeeded", whole.facts.message
        assert await verify(bench.store, "run-1") == []
    async with Bench(runners=3, branches=rng.choice([1, 2, 5])) as bench:
        spread = await bench.run(graph, {"k": k})
        assert (spread.engine.output, spread.facts.state_hash) == (whole.engine.output, whole.facts.state_hash)
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    for cut in rng.sample(range(len(body) + 1), min(2, len(body) + 1)):
        await _resumed(log[0], body[:cut], blobs, whole.engine.output, whole.facts.state_hash)


async def _resumed(
    genesis: Record, body: list[Record], blobs: dict[str, bytes], output: Any, state: str | None
) -> None:
    store = open_store(f"memory://random-{next(_stores)}")
    await put_all(store, blobs)
    await _begin(store, genesis, body)
    async with Bench(store=store, branches=3) as bench:
        session, log = await bench.run(None, epoch=1), await bench.log()
    where = f"cut after {len(body)} records, at {body[-1].path if body else 'genesis'}"
    assert (session.engine.output, session.facts.state_hash) == (output, state), where
    assert await verify(store, "run-1") == [], where
    paths = Counter(r.path for r in log if r.core is not None and r.type != "genesis")
    assert not paths or max(paths.values()) == 1, where


@settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a smaller graph would take minutes to be found
    suppress_health_check=list(HealthCheck),
)
@given(graphs(), st.integers(0, 5), st.integers(0, 1_000_000))
def test_the_state_of_a_graph_depends_on_neither_runners_nor_crashes(spec: str, k: int, seed: int) -> None:
    asyncio.run(_states(compiled(spec), k, random.Random(seed)))
