"""Random graphs with models, and limits on graph, templates, nodes and agents, in each other: of what is inside another
one never the higher.

When a budget stops something is a matter of time. But a run in which nothing was stopped used the same as any other run
of the graph, so that without a limit of `seconds` nothing is stopped in any.
"""

from __future__ import annotations

from typing import Any

from soak.draw import Writer
from soak.made import Made, Template

LEAST = {"tokens": 5, "steps": 1, "toolCalls": 1}
"""The lowest limits of what is innermost; each step outwards has at least as much."""
WIDER = 1.3
LEAST_COST = 7_000
"""In nano-dollars: about as much as the tokens beside it cost."""
LEAST_TIME = 0.1


class LimitedWriter(Writer):
    """Draws as `Writer` does, with nodes that ask models, and with limits, of time only with `seconds`."""

    def __init__(self, seed: int, *, seconds: bool, **more: Any) -> None:
        super().__init__(seed, **more)
        self.price = ", price: {inputPerMillion: 1, outputPerMillion: '2.5'}"
        self.limited = [*LEAST, "costUSD", *(["seconds"] if seconds else [])]

    def spec(self, *, may_fail: bool = False) -> str:
        text = super().spec(may_fail=may_fail)
        if self.chance(2):
            text = f"  limits: {self.limits(3 * self.deepest + 1)}\n" + text
        return text

    def template(self, name: str, depth: int) -> Template:
        made = super().template(name, depth)
        if self.chance(2):
            made.text += f"      limits: {self.limits(3 * depth + 1)}\n"
        return made

    def node(self, name: str, before: list[Made], *, place: str, depth: int, free: bool) -> tuple[Made, bool]:
        if self.chance(3):
            made, may_fail = self.asking(name, before, free=free)
        else:
            made, may_fail = super().node(name, before, place=place, depth=depth, free=free)
        if depth and self.chance(2):
            own = f"prompt: Begin, limits: {self.limits(3 * depth - 1)}}}"
            made.lines = [line.replace("prompt: Begin}", own) for line in made.lines]
        uses = any(line.startswith(("graph:", "map:", "loop:", "agent:", "llm:")) for line in made.lines)
        if uses and self.chance(2):
            made.lines.append(f"limits: {self.limits(3 * depth)}")
        return made, may_fail

    def asking(self, name: str, before: list[Made], *, free: bool) -> tuple[Made, bool]:
        """A node that asks a model of its own: one that answers, at once or after an error that is tried again, or one
        that never does.
        """
        fails = self.chance(6)
        error = self.pick(["RateLimited", "ModelUnavailable"])
        replies, retry = "", ""
        if fails:
            replies, retry = f"{{error: {error}}}", "retry: {transient: 2, errors: [ModelTimeout]}"
        elif self.chance(3):
            replies, retry = f"{{error: {error}, times: 1}}", f"retry: {{transient: 2, errors: [{error}]}}"
        model = self.scripted(f"replies: [{replies}], default: {{v: {self.number(1, 9)}}}")
        given = " + ".join(["input.k", *(n.reads for n in before if self.chance(3))])
        messages = ""
        if self.chance(2):
            messages = "messages: [{role: user, content: '1'}, {role: assistant, content: '{\"v\": 1}'}], "
        lines = [f'with: {{a: "{given}"}}', f'llm: {{ref: {model}, {messages}prompt: "Say {{{{ a }}}}"}}']
        lines += [line for line in (retry, "output: {v: {type: integer}}") if line]
        rule = self.pick(["fail", "skip", "otherwise"]) if free else self.pick(["skip", "otherwise"])
        if fails and rule != "fail":
            lines.append(f"onFailure: {rule}")
        if fails and rule == "otherwise":
            lines.append('otherwise: {v: "-1"}')
        return Made(name, f"(nodes.{name}.output.v if nodes.{name}.output else 0)", lines), fails and rule == "fail"

    def limits(self, level: int) -> str:
        """Some limits of what stands `level` steps outwards."""
        some = self.random.sample(self.limited, self.number(1, 2))
        found = {}
        for field in some:
            share = self.random.uniform(WIDER**level, WIDER ** (level + 1))
            if field == "costUSD":
                found[field] = f'"{share * LEAST_COST / 10**9:.9f}"'
            elif field == "seconds":
                found[field] = f"{share * LEAST_TIME:.1f}"
            else:
                found[field] = str(int(share * LEAST[field]))
        return "{" + ", ".join(f"{field}: {amount}" for field, amount in found.items()) + "}"
