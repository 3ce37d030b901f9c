"""Random graphs of all kinds of nodes, as specs in YAML, each decided by a seed.

Each value is an integer `v` in which the order of lists shows, each template has the input `k`. In a scope at most one
node may fail it: which of two failures comes first depends on time. In the root none may, so that every run succeeds,
unless that is asked for.
"""

from __future__ import annotations

import random
from typing import Any

from soak.channels import Channels, is_ordered
from soak.made import Made, Template

DEEPEST = 3


class Writer:
    """Draws one graph: the same one for the same seed. `deepest` bounds how templates are nested; with `timed` there
    may be nodes in it of which time decides what they give, with `agents` some whose tools are templates, with `files`
    some that write files, with `sealed` some of which something is sensitive.
    """

    def __init__(
        self,
        seed: int,
        *,
        deepest: int = DEEPEST,
        timed: bool = False,
        agents: bool = False,
        files: bool = False,
        sealed: bool = False,
    ) -> None:
        self.timed = timed
        self.sealed = sealed
        self.agents = agents
        self.files = files
        self.price = ""
        """What stands in a model beside its script."""
        self.models: list[str] = []
        self.random = random.Random(seed)
        self.channels = Channels(seed)
        self.deepest = deepest
        self.templates: list[Template] = []

    def pick(self, options: list[Any]) -> Any:
        return self.random.choice(options)

    def number(self, least: int, most: int) -> int:
        return self.random.randint(least, most)

    def chance(self, of: int) -> bool:
        """True once in `of` times."""
        return self.random.randrange(of) == 0

    def spec(self, *, may_fail: bool = False) -> str:
        for depth in range(self.deepest):
            for _ in range(self.number(1, 2)):
                self.templates.append(self.template(f"t{len(self.templates)}", depth))
        root = self.body("root", "", depth=self.deepest, fails=may_fail)[0]
        root += self.final() if self.chance(3) else ""
        used = self.used(root)
        templates = [template.text for template in self.templates if template.name in used]
        head = ["  templates:\n"] if templates else []
        sealed = ["  sensitive: [k]\n"] if self.sealed and self.chance(2) else []
        return "".join([*sealed, "  input: {k: {type: integer}}\n", root, *head, *templates, *self.models])

    def model(self) -> str:
        """The name of a model that makes a few calls, in one turn or two, and finishes whatever they gave."""
        replies = [f"{{match: Begin, calls: [{self.calls(3)}]}}"]
        replies += [f"{{match: '\"v\"', times: 1, calls: [{self.calls(1)}]}}"] if self.chance(3) else []
        replies.append(f"{{calls: [{{tool: finish, arguments: {{v: {self.number(1, 9)}}}}}]}}")
        return self.scripted(f"replies: [{', '.join(replies)}]")

    def scripted(self, script: str) -> str:
        """The name of a model with this script."""
        name = f"m{len(self.models)}"
        self.models.append(
            f"---\napiVersion: decurion.dev/v1alpha1\nkind: LLM\nmetadata: {{name: {name}}}\n"
            f"spec: {{protocol: scripted{self.price}, scripted: {{{script}}}}}\n"
        )
        return name

    def calls(self, most: int) -> str:
        numbers = [self.number(0, 6) for _ in range(self.number(1, most))]
        return ", ".join(f"{{tool: look, arguments: {{k: {k}}}}}" for k in numbers)

    def final(self, indent: str = "") -> str:
        """Nodes that run when the others of a scope have ended, one that may fail among them where another has."""
        odd = "raise ValueError('no')" if self.chance(4) else "pass"
        lines = [
            "  finally:",
            "    - name: f0",
            '      with: {how: run.outcome, seen: "nodes.n0.output is None"}',
            "      code: |",
            "        if how == 'Failed' and not seen:",
            f"            {odd}",
            '        {"v": len(how)}',
            "      output: {v: {type: integer}}",
            "    - name: f1",
            '      with: {a: "nodes.f0.output.v if nodes.f0.output else 0"}',
            '      transform: {v: "a + 1"}',
        ]
        return "".join(f"{indent}{line}\n" for line in lines)

    def used(self, text: str) -> set[str]:
        found = {t.name for t in self.templates if f"template: {t.name}" in text}
        for template in [t for t in self.templates if t.name in found]:
            found |= self.used(template.text)
        return found

    def template(self, name: str, depth: int) -> Template:
        made = Template(name, depth, wide=self.chance(3))
        pad = "\"'p' * 9000\"" if made.wide else "\"''\""
        body, made.fallible, made.files = self.body(name, "    ", depth=depth, fails=True, more=f", pad: {pad}")
        # Nothing with a finally inside may be given up in a race.
        body += self.final("    ") if not self.timed and self.chance(4) else ""
        made.text = f"    - name: {name}\n      input: {{k: {{type: integer}}}}\n" + body
        return made

    def body(
        self, place: str, indent: str, *, depth: int, fails: bool, more: str = ""
    ) -> tuple[str, bool, frozenset[str]]:
        """A scope without its input; whether it may fail; the folders that it writes."""
        nodes: list[Made] = []
        free = fails
        for i in range(self.number(1, 4 if depth else 3)):
            made, may_fail = self.node(f"n{i}", nodes, place=place, depth=depth, free=free)
            free = free and not may_fail
            nodes.append(made)
        if self.timed and len(nodes) > 1 and self.chance(2):
            nodes.append(self.joined(f"n{len(nodes)}", nodes))
        channel = self.channels.drawn(nodes)
        switch = self.switch(nodes) if self.chance(2) else []
        writers = [n for n in nodes if any("acc: " in line for line in n.lines if line.startswith("writes:"))]
        state = ["{name: acc, schema: {type: array, items: {type: integer}}, merge: append}"] if writers else []
        state += [channel.declared] if channel else []
        lines = [f"state: [{', '.join(state)}]"] if state else []
        lines += ["nodes:", *switch]
        for made in nodes:
            lines += [f"  - name: {made.name}", *(f"    {line}" for line in made.lines)]
        total = " + ".join(n.reads for n in nodes)
        total += " + sum([(i + 1) * x for i, x in enumerate(state.acc)])" if writers else ""
        total += f" + {channel.read}" if channel else ""
        lines.append(f'output: {{v: "{total}"{more}}}')
        files = frozenset().union(*(n.files for n in nodes))
        return "".join(f"{indent}  {line}\n" for line in lines), fails and not free, files

    def joined(self, name: str, before: list[Made]) -> Made:
        """A node for which some of those before it race. What fails may come too late to be told from a skip: it does
        not fail its scope.
        """
        racers = self.random.sample(before, self.number(2, len(before)))
        count = self.pick([1, 1, self.number(1, len(racers)), len(racers)])
        mode = f"quorum, count: {count}" if count > 1 or self.chance(2) else "any"
        given = " + ".join(["input.k", *(n.reads for n in before)])
        lines = [f"join: {{mode: {mode}}}", f"after: [{', '.join(n.name for n in racers)}]"]
        lines += [f'with: {{a: "{given}"}}', 'transform: {v: "a % 1000 + 1"}']
        lines.append('onFailure: otherwise\notherwise: {v: "-3"}' if self.chance(2) else "onFailure: skip")
        if self.chance(2):
            lines.append('writes: {acc: "[output.v]"}')
        lines = [part for line in lines for part in line.split("\n")]
        return Made(name, f"(nodes.{name}.output.v if nodes.{name}.output else 0)", lines)

    def switch(self, nodes: list[Made]) -> list[str]:
        """A switch over some of the nodes that nothing of it reads."""
        chosen = [n for n in nodes if self.chance(2) and not any(n.files & o.files for o in nodes if o is not n)]
        # A switch takes away the order in which they write.
        chosen = [n for n in chosen if not is_ordered(n)]
        if not chosen:
            return []
        half = self.number(0, len(chosen))
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

    def node(self, name: str, before: list[Made], *, place: str, depth: int, free: bool) -> tuple[Made, bool]:
        """A node; whether it may fail its scope. `free`: it is allowed to."""
        kinds = ["code", *(["graph", "map", "map", "map", "loop"] if depth else ["code", "transform"])]
        kinds += ["agent", "agent"] if self.agents and depth else []
        kinds += ["write", "write", "glob"] if self.files else []
        # What people are asked, and keys of items, would lie in clear.
        kinds += ["approval"] if self.timed and not self.sealed and self.chance(6) else []
        kind = self.pick(kinds)
        given = " + ".join(["input.k", *(n.reads for n in before if self.chance(3))])
        lines: list[str] = []
        below = [t for t in self.templates if t.depth < depth]
        read = f"(nodes.{name}.output.v if nodes.{name}.output else 0)"
        instead = '{v: "-1"}'
        files: frozenset[str] = frozenset()
        match kind:
            case "write":
                fallible, folder = False, f"{place}-{name}"
                call = f'{{path: "{folder}/{{{{ a % 3 }}}}.txt", text: "{{{{ a }}}} in {name}"}}'
                lines += [f'with: {{a: "{given}"}}', f'workspace: {{write: ["{folder}/**"]}}']
                lines.append(f"tool: {{server: workspace, name: write, arguments: {call}}}")
                read = f"(nodes.{name}.output.bytes if nodes.{name}.output else 0)"
                instead, files = '{bytes: "-1"}', frozenset({folder})
            case "glob":
                fallible = False
                lines.append('tool: {server: workspace, name: glob, arguments: {pattern: "**"}}')
                read = f"(len(nodes.{name}.output.paths) if nodes.{name}.output else 0)"
                instead = '{paths: "[]"}'
            case "transform":
                lines += [f'with: {{a: "{given}"}}', 'transform: {v: "a % 1000 + 1"}']
                fallible = False
            case "code":
                fallible = self.chance(2)
                lines += [f'with: {{a: "{given}"}}', "code: |"]
                if fallible:
                    lines += [f"    if a % {self.pick([2, 3])} == 0:", "        raise ValueError('no')"]
                lines += ['    {"v": a % 1000 + 1}', "output: {v: {type: integer}}"]
            case "loop":
                template = self.pick(below)
                rounds, fails = self.pick([1, 2, 3]), self.chance(5)
                fallible = template.fallible or fails
                block = f"template: {template.name}, maxIterations: {rounds}"
                block += f", next: {{k: output.v % 7 + {self.pick([0, 1])}}}" if not self.chance(4) else ""
                block += f", until: output.v % 5 == {self.pick([0, 1, 2])}" if fails or self.chance(2) else ""
                block += f", onExhausted: {'fail' if fails else 'succeed'}"
                block += ", score: output.v % 11, keep: best" if self.chance(3) else ""
                lines += [f'with: {{k: "({given}) % 7"}}', f"loop: {{{block}}}"]
                files = template.files
                instead = '{v: "-1", pad: "\'\'", iterations: "0"}'
            case "agent":
                fallible = False
                block = (
                    f"model: {self.model()}, tools: [{{template: {self.pick(below).name}, as: look}}], prompt: Begin"
                )
                lines += [f"agent: {{{block}}}", "output: {v: {type: integer}}"]
            case "approval":
                # Where there is a time nobody answers, so that it decides; else somebody does.
                fallible, decided = False, self.pick(["approve", "reject"])
                timed = f", timeoutSeconds: {self.pick([1, 60])}, onTimeout: {decided}" if self.chance(2) else ""
                lines.append(f"approval: {{message: 'Go on?'{timed}, onReject: continue}}")
                read = f"((1 if nodes.{name}.output.approved else 2) if nodes.{name}.output else 0)"
                instead = '{approved: "False"}'
            case "graph":
                template = self.pick(below)
                fallible = template.fallible
                lines += [f'with: {{k: "({given}) % 7"}}', f"graph: {{template: {template.name}}}"]
                files = template.files
                instead = '{v: "-1", pad: "\'\'"}'
            case _:
                template = self.pick(below)
                count = self.pick([0, 1, 2, 5, 12]) if template.depth == 0 else self.pick([1, 2, 3])
                tolerate, fast, keyed = self.pick([0, 1, 99]), self.chance(3), self.chance(3)
                fallible = template.fallible and tolerate < count
                block = f'items: "[i + ({given}) % 5 for i in range({count})]", as: k, template: {template.name}'
                block += f", tolerate: {{count: {tolerate}}}" if tolerate else ""
                block += ", failFast: true" if fast else ""
                block += ', key: "str(k)"' if keyed and not self.sealed else ""
                block += f", concurrency: {self.pick([1, 2])}" if self.chance(3) else ""
                collect = False
                if template.files:
                    merge = self.pick(["prefer", "namespace", "disjoint", "threeWay"])
                    collect = merge in ("disjoint", "threeWay")
                    block += f", workspace: {{merge: {merge}{', onConflict: collect' if collect else ''}}}"
                    files = frozenset({name}) if merge == "namespace" else template.files
                    files |= {".conflicts"} if collect else set()
                lines.append(f"map: {{{block}}}")
                conflicts = ', conflicts: "[]"' if collect else ""
                out = f"nodes.{name}.output"
                rows = f"sum([(j + 1) * i.v for j, i in enumerate({out}.items)])"
                read = f"({rows} + 1000 * len({out}.failures) if {out} else 0)"
                instead = f'{{items: "[]", failures: "[]", total: "0"{conflicts}}}'
        if self.chance(3):
            lines.append(f'when: "input.k % 3 != {self.pick([0, 1])}"')
        after = [n.name for n in before if self.chance(4) or n.files & files]
        if after:
            lines.append(f"after: [{', '.join(after)}]")
        rule = self.pick(["fail", "skip", "otherwise"]) if fallible and free else self.pick(["skip", "otherwise"])
        if fallible and rule != "fail":
            lines.append(f"onFailure: {rule}")
        if (fallible and rule == "otherwise") or (rule == "otherwise" and self.chance(2)):
            lines.append(f"otherwise: {instead}")
        gives = {
            "map": "output.total",
            "approval": "int(output.approved)",
            "write": "output.bytes",
            "glob": "len(output.paths)",
        }.get(kind, "output.v")
        if self.chance(2):
            lines.append(f'writes: {{acc: "[{gives}]"}}')
        if self.sealed and self.chance(3):
            lines.append(f"sensitive: {self.pick(['true', 'true', 'false'])}")
        return Made(name, read, lines, files, gives), fallible and rule == "fail"
