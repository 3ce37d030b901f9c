"""A second channel in a scope of a random graph, by any rule, with those that write it and those that read it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from soak.made import Made

RULES = ("replace", "replace", "replace", "sum", "min", "max", "union", "mergeByKey")
INTEGER = "{type: integer}"
ITEM = "{type: object, properties: {id: {type: integer}, v: {type: integer}}, required: [id, v]}"
VALUES = {"union": "[{0} % 3]", "mergeByKey": "[{{'id': {0} % 3, 'v': {0}}}]"}
READ = {
    "union": "sum([(i + 1) * x for i, x in enumerate(state.other)])",
    "mergeByKey": "sum([(i + 1) * x.v for i, x in enumerate(state.other)])",
}


@dataclass(frozen=True)
class Channel:
    """How it is declared, and an integer expression that reads it at the end of its scope."""

    declared: str
    read: str


class Channels:
    """Draws channels: by a chance of its own, so that the rest of a seed's graph is the same without them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"channels of {seed}")

    def drawn(self, nodes: list[Made]) -> Channel | None:
        """A channel that some of `nodes` write from now on; None in one of two scopes."""
        rule = self.random.choice(RULES)
        writers = [n for n in nodes if self.random.randrange(3)]
        if rule == "replace":
            # What races comes after nodes of its own.
            writers = [n for n in writers if not any(line.startswith("join:") for line in n.lines)]
        if not writers or self.random.randrange(2):
            return None
        for writer in writers:
            _write(writer, VALUES.get(rule, "{0}").format(writer.gives))
        if rule == "replace":
            self._order(writers)
        declared = "{name: other, schema: " + self._shape(rule, writers) + "}"
        return Channel(declared, READ.get(rule, "(state.other or 0)"))

    def _shape(self, rule: str, writers: list[Made]) -> str:
        order = [n.name for n in writers]
        self.random.shuffle(order)
        named = f", order: [{', '.join(order)}]" if self.random.randrange(2) else ""
        match rule:
            case "union":
                return f"{{type: array, items: {INTEGER}}}, merge: {{rule: union{named}}}"
            case "mergeByKey":
                prefer = self.random.choice(["first", "last"])
                return f"{{type: array, items: {ITEM}}}, merge: {{rule: mergeByKey, key: id, prefer: {prefer}{named}}}"
            case _:
                initial = f", initial: {self.random.randrange(9)}" if self.random.randrange(2) else ""
                return f"{INTEGER}, merge: {rule}{initial}"

    def _order(self, writers: list[Made]) -> None:
        """Each writer comes after the one before; some of them read what that one left."""
        for before, writer in zip([None, *writers], writers, strict=False):
            if before is not None:
                _come_after(writer, before.name)
            if self.random.randrange(2):
                writer.lines = [
                    line.replace('with: {a: "', 'with: {a: "(state.other or 0) + ') for line in writer.lines
                ]


def is_ordered(node: Made) -> bool:
    """Whether it writes a channel that keeps the last value."""
    return any(line.startswith("writes: {other") for line in node.lines)


def _write(node: Made, value: str) -> None:
    own = [line for line in node.lines if line.startswith("writes: {")]
    rest = own[0].removeprefix("writes: {") if own else "}"
    comma = ", " if own else ""
    node.lines = [line for line in node.lines if line not in own]
    node.lines.append(f'writes: {{other: "{value}"{comma}{rest}')


def _come_after(node: Made, name: str) -> None:
    own = [line for line in node.lines if line.startswith("after: [")]
    names = own[0].removeprefix("after: [").removesuffix("]").split(", ") if own else []
    node.lines = [line for line in node.lines if line not in own]
    node.lines.append(f"after: [{', '.join(dict.fromkeys([*names, name]))}]")
