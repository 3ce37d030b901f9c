"""From YAML text to JSON values with the place of every value, as kubectl reads it.

Built on the events of libyaml, the parser that go-yaml 2 is a translation of; what words mean is in `scalars.py`,
and how aliases, merge keys and tags count follows `decode.go` of go.yaml.in/yaml/v2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from decurion_crds.canonical import Json
from decurion_crds.findings import MAX_WORD, quoted, shortened
from decurion_crds.loader import accidents
from decurion_crds.loader.scalars import SAME, go_key, go_scalar, other_reading
from decurion_crds.loader.source import Source, Spot
from decurion_crds.v1alpha1.parse import KEY, Place

MAX_DEPTH = 100
MAX_VALUES = 200_000
MAX_CHARACTERS = 16 * 1024 * 1024
"""Bounds of the values of one document and of the texts in them, aliases expanded."""

MAX_PROBLEMS = 200
"""Faults of one kind of one document that are told one by one."""

_STANDARD = "tag:yaml.org,2002:"
_TAGS = frozenset(
    _STANDARD + name for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge")
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a text as YAML. `fix` is (old, new)."""

    code: str
    place: Place
    spot: Spot
    message: str
    fix: tuple[str, str] | None = None


@dataclass(slots=True)
class Composed:
    """One document: its value with the null members of objects dropped (`nulls` says which), and the spot of every
    value and key.
    """

    value: Json = None
    spots: dict[Place, Spot] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nulls: list[Place] = field(default_factory=list)


def compose(source: Source) -> Composed:
    """The first document of `source`. Never raises for what is in the text: problems are in the result."""
    composed = Composed()
    try:
        root = _Tree(source).root()
    except _Stop as stop:
        composed.problems.append(Problem("YAML", (), stop.spot, stop.message))
        return composed
    except yaml.MarkedYAMLError as error:
        spot = source.spot_of(error.problem_mark or error.context_mark)
        message = accidents.syntax(source, spot, error.problem or "", error.context or "")
        composed.problems.append(Problem("YAML", (), spot, message))
        return composed
    except yaml.YAMLError:
        # What libyaml says of a character it does not take is the character's number in bytes of the document.
        composed.problems.append(Problem("YAML", (), *accidents.character(source)))
        return composed
    if root is not None:
        _Builder(source, composed).document(root)
    return composed


def tree(source: Source) -> Node | None:
    """The first document as its nodes are written, for a text in which `compose` finds nothing wrong."""
    return _Tree(source).root()


class _Stop(Exception):
    def __init__(self, spot: Spot, message: str) -> None:
        super().__init__(message)
        self.spot = spot
        self.message = message


@dataclass(slots=True, eq=False)
class Node:
    """A node as written. `children` are the items of a list, or keys and values in turn."""

    kind: str
    spot: Spot
    value: str = ""
    tag: str | None = None
    plain: bool = False
    flow: bool = False
    anchored: bool = False
    anchor: str = ""
    children: list[Node] = field(default_factory=list)
    target: Node | None = None


class _Tree:
    """Reads one document's events into nodes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._anchors: dict[str, Node] = {}
        self._events: Iterator[Any] = yaml.parse(source.text, Loader=yaml.CSafeLoader)

    def root(self) -> Node | None:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                root = self._node(next(self._events), 0)
                self._end()
                return root
        return None

    def _end(self) -> None:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                spot = self._source.spot_of(event.start_mark)
                raise _Stop(spot, "kubectl ignores what follows here; separate documents by a line ---")

    def _node(self, event: Any, depth: int) -> Node:
        spot = self._source.spot_of(event.start_mark, event.end_mark)
        if depth > MAX_DEPTH:
            raise _Stop(spot, f"this is nested deeper than {MAX_DEPTH} levels; flatten it")
        if isinstance(event, yaml.AliasEvent):
            target = self._anchors.get(str(event.anchor))
            if target is None:
                raise _Stop(
                    spot,
                    f"*{event.anchor} refers to an anchor that does not exist; put a text that starts with * into "
                    "quotes",
                )
            return Node("alias", spot, anchor=str(event.anchor), target=target)
        if isinstance(event, yaml.ScalarEvent):
            spot = self._source.scalar_spot(event)
            node = Node("scalar", spot, event.value, event.tag, plain=bool(event.implicit[0]))
            self._anchor(event, node)
            return node
        node = Node(
            "map" if isinstance(event, yaml.MappingStartEvent) else "list",
            spot,
            tag=event.tag,
            flow=bool(event.flow_style),
        )
        self._anchor(event, node)
        for inner in self._events:
            if isinstance(inner, yaml.CollectionEndEvent):
                if node.flow:
                    node.spot = self._source.spot_of(event.start_mark, inner.end_mark)
                return node
            node.children.append(self._node(inner, depth + 1))
        return node

    def _anchor(self, event: Any, node: Node) -> None:
        if event.anchor is not None:
            node.anchored = True
            node.anchor = str(event.anchor)
            self._anchors[event.anchor] = node


_NOTHING = object()


class _Builder:
    """Makes values of nodes; writes spots and problems into the result."""

    def __init__(self, source: Source, into: Composed) -> None:
        self._source = source
        self._into = into
        self._left = MAX_VALUES
        self._characters = MAX_CHARACTERS
        self._open: set[int] = set()

    def document(self, root: Node) -> None:
        try:
            self._into.value = self._value(root, (), 0)
        except _Stop as stop:
            self._into.problems.append(Problem("YAML", (), stop.spot, stop.message))

    def _problem(self, code: str, place: Place, spot: Spot, message: str, fix: tuple[str, str] | None = None) -> None:
        """Beyond `MAX_PROBLEMS` warnings are left out, and errors end the document."""
        many = sum(one.code == code for one in self._into.problems) if len(self._into.problems) >= MAX_PROBLEMS else 0
        if many >= MAX_PROBLEMS and code == "YAML":
            raise _Stop(spot, f"here and below there may be more than the {many} faults above; mend those first")
        if many < MAX_PROBLEMS:
            self._into.problems.append(Problem(code, place, spot, message, fix))

    def _value(self, node: Node, place: Place, depth: int) -> Json:
        self._left -= 1
        if self._left < 0:
            raise _Stop(
                node.spot, f"with aliases in place there are more than {MAX_VALUES:,} values; shorten the document"
            )
        if depth > MAX_DEPTH:
            raise _Stop(node.spot, f"this is nested deeper than {MAX_DEPTH} levels; flatten it")
        if node.target is not None:
            return self._alias(node, place, depth)
        self._into.spots[place] = node.spot
        if node.tag is not None and node.tag not in _TAGS:
            self._problem("YAML", place, node.spot, accidents.tag(self._source, node.spot, node.tag))
            return node.value if node.kind == "scalar" else None
        if node.kind == "scalar":
            self._characters -= len(node.value)
            if self._characters < 0:
                limit = f"more than {MAX_CHARACTERS:,} characters"
                raise _Stop(node.spot, f"with aliases in place the texts have {limit}; shorten the document")
            return self._scalar(node, place)
        if node.kind == "list":
            self._cut_in_flow(node, node.children, place)
            return [self._value(child, (*place, i), depth + 1) for i, child in enumerate(node.children)]
        return self._map(node, place, depth)

    def _alias(self, node: Node, place: Place, depth: int) -> Json:
        target = node.target
        if target is None or id(target) in self._open:
            raise _Stop(node.spot, "an anchor's value cannot contain itself; write it out")
        self._open.add(id(target))
        value = self._value(target, place, depth + 1)
        self._open.discard(id(target))
        self._into.spots[place] = node.spot
        return value

    def _scalar(self, node: Node, place: Place) -> Json:
        if node.tag in (None, _STANDARD + "str") and not (node.plain and node.tag is None):
            return node.value
        value = go_scalar(node.value)
        if node.tag is not None:
            return self._tagged(node, value, place)
        if isinstance(value, float) and not math.isfinite(value):
            message = f'JSON has no {node.value}; write "{node.value}" for the text'
            self._problem("YAML", place, node.spot, message, (node.value, f'"{node.value}"'))
            return node.value
        if node.anchored and not node.value:
            self._problem("YAML", place, node.spot, accidents.anchor(self._source, node.spot))
        self._two_readings(node, value, place)
        hint = accidents.cut_by_comment(self._source, node.spot, node.value)
        if hint:
            self._problem("YAML", place, node.spot, hint)
        return value

    def _tagged(self, node: Node, value: Json, place: Place) -> Json:
        kind = (node.tag or "").removeprefix(_STANDARD)
        if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            return value
        types = {"int": int, "float": float, "bool": bool, "null": type(None), "timestamp": str}
        if type(value) is types.get(kind):
            return value
        self._problem("YAML", place, node.spot, f"{quoted(node.value)} is no !!{kind}; remove the tag")
        return value

    def _two_readings(self, node: Node, value: Json, place: Place) -> None:
        other = other_reading(node.value)
        if other is not SAME:
            word = node.value
            message = f"kubectl reads {word} as {_shown(value)}, and other readers as {_shown(other)}"
            text = f'write "{word}" for the text'
            plain = "" if isinstance(value, str) or _shown(value) == word else f", or {_shown(value)} for that"
            self._problem("YAML001", place, node.spot, f"{message}; {text}{plain}", (word, f'"{word}"'))

    def _map(self, node: Node, place: Place, depth: int) -> Json:
        out: dict[str, Json] = {}
        lines: dict[str, int] = {}
        self._cut_in_flow(node, node.children, place)
        for key, child in zip(node.children[::2], node.children[1::2], strict=True):
            if key.kind == "scalar" and key.value == "<<" and key.plain:
                self._merge(child, place, out, depth)
                continue
            name = self._key(key, place)
            if name is None:
                continue
            below = (*place, name)
            if name in lines:
                read = "" if (key.target or key).value == name else f", which kubectl reads as {quoted(name)},"
                message = f"{quoted((key.target or key).value)}{read} stands here twice (before in line {lines[name]})"
                message = f"{message}; {'put it into quotes, or ' if read else ''}remove one of them"
                self._problem("YAML", (*below, KEY), key.spot, message)
            lines.setdefault(name, key.spot.line)
            value = self._value(child, below, depth + 1)
            self._into.spots[(*below, KEY)] = key.spot
            if value is None:
                self._into.nulls.append(below)
                out.pop(name, None)
            else:
                out[name] = value
        return out

    def _merge(self, child: Node, place: Place, out: dict[str, Json], depth: int) -> None:
        """`<<`: the members of another map, or of several, the first of which wins; written over what stands above."""
        target = child.target or child
        sources = target.children[::-1] if target.kind == "list" else [child]
        for source in sources:
            merged = self._value(source, place, depth + 1)
            if not isinstance(merged, dict):
                raise _Stop(child.spot, "<< takes a map, or a list of maps; write the members out")
            out.update(merged)

    def _key(self, key: Node, place: Place) -> str | None:
        node = key.target or key
        if node.kind != "scalar":
            self._problem("YAML", place, key.spot, accidents.composite_key(self._source, key.spot))
            return None
        if not node.plain:
            return node.value
        name = go_key(node.value)
        if name is None:
            word = shortened(node.value or "null", MAX_WORD)
            found = "null" if go_scalar(node.value) is None else "a number too large for it"
            self._problem("YAML", place, key.spot, f'a key is a text, and this is {found}; write "{word}", quoted')
            return None
        if name != node.value or other_reading(node.value) is not SAME or not isinstance(go_scalar(node.value), str):
            word = shortened(node.value, MAX_WORD)
            message = f'as a key kubectl reads {word} as "{name}", and other readers as something else; write "{word}"'
            fix = (node.value, f'"{node.value}"')
            self._problem("YAML001", (*place, name, KEY), key.spot, message, fix)
        return name

    def _cut_in_flow(self, node: Node, children: list[Node], place: Place) -> None:
        if not node.flow:
            return
        words = [child for child in children if child.kind == "scalar" and child.plain]
        for word in words:
            if "?" in word.value:
                message = accidents.question_mark(self._source, word.spot)
                self._problem("YAML", place, word.spot, message, (word.value, f'"{word.value}"'))
        cut = next((word for word in words if accidents.unbalanced(word.value)), None)
        if cut is not None:
            self._problem("YAML", place, cut.spot, accidents.cut_by_comma(self._source, cut.spot))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        return "text"
    return str(value) if isinstance(value, int | float) else f"a {type(value).__name__}"
