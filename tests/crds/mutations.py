"""Kinds of mistakes as changes of a right graph: each says what it is and gives one changed copy for each place.

A mistake is made wherever its kind can be, so that a graph that grows brings more of them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from decurion_crds.v1alpha1 import BLOCKS

Graph = dict[str, Any]
Mistakes = Iterator[tuple[str, Graph]]
"""The place, by names, and the changed graph."""

KINDS: dict[str, Callable[[Graph], Mistakes]] = {}
EXPRESSIONS = ("with", "writes", "otherwise", "transform", "output", "next")


def kind(make: Callable[[Graph], Mistakes]) -> Callable[[Graph], Mistakes]:
    KINDS[make.__name__.replace("_", "-")] = make
    return make


# ---------------------------------------------------------------------- walking a graph


def scopes(graph: Graph) -> Iterator[tuple[str, Graph]]:
    yield "", graph["spec"]
    for template in graph["spec"].get("templates", []):
        yield f"{template['name']}.", template


def nodes(graph: Graph) -> Iterator[tuple[str, Graph, Graph]]:
    """The name of each node with its scope in front, the scope and the node."""
    for name, scope in scopes(graph):
        for node in scope["nodes"]:
            yield f"{name}{node['name']}", scope, node


def each_node(graph: Graph, change: Callable[[Graph, Graph], object]) -> Mistakes:
    """A copy for each node in which `change(scope, node)` has changed something; it answers False where it has not."""
    for i, (place, _, _) in enumerate(nodes(graph)):
        changed = copy.deepcopy(graph)
        _, scope, node = list(nodes(changed))[i]
        if change(scope, node) is not False:
            yield place, changed


def each_expression(graph: Graph, change: Callable[[str], str | None]) -> Mistakes:
    """A copy for each expression that `change` changes; it answers None for one that it does not."""

    def walk(value: Any, trail: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            here = (*trail, key)
            if isinstance(below, str) and _is_expression(graph, here):
                yield here, below
            elif isinstance(below, dict | list):
                yield from walk(below, here)

    for trail, source in walk(graph["spec"], ()):
        new = change(source)
        if new is not None and new != source:
            changed = copy.deepcopy(graph)
            target: Any = changed["spec"]
            for step in trail[:-1]:
                target = target[step]
            target[trail[-1]] = new
            yield ".".join(map(str, trail)), changed


def _is_expression(graph: Graph, trail: tuple[Any, ...]) -> bool:
    last, before = trail[-1], trail[-2] if len(trail) > 1 else ""
    if last in ("when", "items", "key", "value", "until", "score"):
        return before in ("map", "switch", "loop") or last == "when"
    if before == "output":
        return len(trail) == 2 or (trail[0] == "templates" and len(trail) == 4)
    return before in EXPRESSIONS


# ---------------------------------------------------------------------- names


@kind
def read_of_a_node_that_is_not_there(graph: Graph) -> Mistakes:
    return each_expression(graph, lambda e: re.sub(r"\bnodes\.(\w+)", r"nodes.\1x", e, count=1))


@kind
def read_of_a_field_that_is_not_there(graph: Graph) -> Mistakes:
    return each_expression(graph, lambda e: re.sub(r"\.output\.(\w+)", r".output.\1x", e, count=1))


@kind
def read_of_an_input_that_is_not_there(graph: Graph) -> Mistakes:
    return each_expression(graph, lambda e: re.sub(r"\binput\.(\w+)", r"input.\1x", e, count=1))


@kind
def read_of_a_channel_that_is_not_there(graph: Graph) -> Mistakes:
    return each_expression(graph, lambda e: re.sub(r"\bstate\.(\w+)", r"state.\1x", e, count=1))


@kind
def name_that_nobody_has(graph: Graph) -> Mistakes:
    return each_expression(graph, lambda e: re.sub(r"^", "whatever or ", e))


@kind
def function_that_nobody_has(graph: Graph) -> Mistakes:
    return each_expression(graph, lambda e: f"summarise({e})")


@kind
def bracket_left_open(graph: Graph) -> Mistakes:
    return each_expression(graph, lambda e: f"({e}")


@kind
def way_out_of_the_language(graph: Graph) -> Mistakes:
    return each_expression(graph, lambda e: "__import__('os').getcwd()")


@kind
def words_of_another_language(graph: Graph) -> Mistakes:
    return each_expression(graph, lambda e: f"{e} && true")


@kind
def with_that_is_forgotten(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["with"].popitem() if node.get("with") else False

    return each_node(graph, change)


@kind
def node_that_is_forgotten(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return scope["nodes"].remove(node)

    return each_node(graph, change)


@kind
def node_that_is_there_twice(graph: Graph) -> Mistakes:
    return each_node(graph, lambda scope, node: scope["nodes"].append(copy.deepcopy(node)))


@kind
def model_that_is_not_there(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["llm"].update(ref=node["llm"]["ref"] + "x") if "llm" in node else False

    return each_node(graph, change)


@kind
def template_that_is_forgotten(graph: Graph) -> Mistakes:
    for i, template in enumerate(graph["spec"].get("templates", [])):
        changed = copy.deepcopy(graph)
        del changed["spec"]["templates"][i]
        yield template["name"], changed


@kind
def input_of_a_template_renamed(graph: Graph) -> Mistakes:
    for i, template in enumerate(graph["spec"].get("templates", [])):
        for name in template.get("input", {}):
            changed = copy.deepcopy(graph)
            fields = changed["spec"]["templates"][i]["input"]
            fields[f"{name.rstrip('?')}x"] = fields.pop(name)
            yield f"{template['name']}.input.{name}", changed


@kind
def item_of_a_map_renamed(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["map"].update({"as": "whatever"}) if "map" in node else False

    return each_node(graph, change)


@kind
def predecessor_that_is_not_there(graph: Graph) -> Mistakes:
    return each_node(graph, lambda scope, node: node.setdefault("after", []).append("whatever"))


@kind
def channel_that_is_not_declared(graph: Graph) -> Mistakes:
    return each_node(graph, lambda scope, node: node.setdefault("writes", {}).update(whatever="1"))


@kind
def case_of_a_node_that_is_not_there(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["switch"]["cases"][0]["nodes"].append("whatever") if "switch" in node else False

    return each_node(graph, change)


# ---------------------------------------------------------------------- order


@kind
def circle(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        readers = [n["name"] for n in scope["nodes"] if f"nodes.{node['name']}." in str(n)]
        return node.setdefault("after", []).append(readers[-1]) if readers else False

    return each_node(graph, change)


@kind
def node_after_itself(graph: Graph) -> Mistakes:
    return each_node(graph, lambda scope, node: node.setdefault("after", []).append(node["name"]))


@kind
def template_in_itself(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        if "name" not in scope:
            return False
        for block in BLOCKS:
            node.pop(block, None)
        return node.update(graph={"template": scope["name"]})

    return each_node(graph, change)


@kind
def two_writers_in_no_order(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        if "switch" in node:
            return False
        channel = {"name": "contested", "schema": {"type": "integer"}}
        scope.setdefault("state", []).append(channel)
        other = {"name": "rival", "transform": {"v": "1"}, "writes": {"contested": "1"}}
        scope["nodes"].append(other)
        return node.setdefault("writes", {}).update(contested="2")

    return each_node(graph, change)


# ---------------------------------------------------------------------- types


@kind
def condition_that_is_no_truth_value(graph: Graph) -> Mistakes:
    return each_node(graph, lambda scope, node: node.update(when="'yes'"))


@kind
def condition_without_an_otherwise(graph: Graph) -> Mistakes:
    """The node may be skipped, and somebody reads it as if it never were."""

    def change(scope: Graph, node: Graph) -> object:
        read = any(f"nodes.{node['name']}.output" in str(n.get("with", "")) for n in scope["nodes"])
        if not read or "otherwise" in node or "when" in node or "switch" in node:
            return False
        return node.update(when="len('a') > 1")

    return each_node(graph, change)


@kind
def otherwise_that_is_forgotten(graph: Graph) -> Mistakes:
    return each_node(graph, lambda scope, node: node.pop("otherwise", False))


@kind
def items_that_are_no_list(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["map"].update(items="1") if "items" in node.get("map", {}) else False

    return each_node(graph, change)


@kind
def field_of_an_output_that_may_be_absent(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        fields = node.get("output")
        if not isinstance(fields, dict) or "type" in fields or not fields or "code" not in node:
            return False
        name = next(iter(fields))
        return fields.update({f"{name}?": fields.pop(name)})

    return each_node(graph, change)


@kind
def output_of_code_that_is_not_declared(graph: Graph) -> Mistakes:
    return each_node(graph, lambda scope, node: node.pop("output", False) if "code" in node else False)


@kind
def type_that_is_none(graph: Graph) -> Mistakes:
    for name, scope in scopes(graph):
        for field in scope.get("input", {}):
            changed = copy.deepcopy(graph)
            dict(scopes(changed))[name]["input"][field] = {"type": "strin"}
            yield f"{name}input.{field}", changed


@kind
def write_of_another_type(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["writes"].update({next(iter(node["writes"])): "{'a': 1}"}) if node.get("writes") else False

    return each_node(graph, change)


@kind
def case_that_the_value_never_has(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["switch"]["cases"][0].update(equals="whatever") if "switch" in node else False

    return each_node(graph, change)


# ---------------------------------------------------------------------- form


@kind
def field_that_is_misspelt(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        block = next(b for b in BLOCKS if b in node)
        return node.update({f"{block}s": node.pop(block)})

    return each_node(graph, change)


@kind
def two_blocks(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node.update(code="1") if "code" not in node else node.update(transform={"v": "1"})

    return each_node(graph, change)


@kind
def no_block(graph: Graph) -> Mistakes:
    return each_node(graph, lambda scope, node: [node.pop(block, None) for block in BLOCKS])


@kind
def time_that_is_negative(graph: Graph) -> Mistakes:
    return each_node(graph, lambda scope, node: node.update(timeoutSeconds=-1))


@kind
def no_item_at_a_time(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["map"].update(concurrency=0) if "map" in node else False

    return each_node(graph, change)


@kind
def more_than_all_may_fail(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["map"].update(tolerate={"percent": 150}) if "map" in node else False

    return each_node(graph, change)


@kind
def text_whose_braces_stay_open(graph: Graph) -> Mistakes:
    def change(scope: Graph, node: Graph) -> object:
        return node["llm"].update(prompt="{{ " + node["llm"]["prompt"]) if "llm" in node else False

    return each_node(graph, change)
