"""Bodies in place and templates, in the text of a TaskGraph: `bodies.unhoist` and `bodies.hoist` with comments kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decurion_crds.canonical import canonical
from decurion_crds.loader.bodies import BLOCKS, NODES, Hoisted, hoist, unhoist, with_inputs
from decurion_crds.loader.compose import compose
from decurion_crds.loader.form import FormRefused, rewritten, written_value
from decurion_crds.loader.layout import Element, Layout, NotLaidOut, Value, layout
from decurion_crds.loader.source import Source

_REFUSED = "nested otherwise it would be another graph; its form is left alone"


def nested(text: str) -> str:
    """A document of a TaskGraph with each template in place that one node alone runs, where it has that node's name.

    Raises `FormRefused`.
    """
    found, resource = _read(text)
    inner = unhoist(resource)
    if inner == resource:
        return rewritten(found, text)
    spec = _spec(found)
    list_ = spec.member("templates")
    own = {str(_text(one.value.member("name"))): one for one in (list_.value.elements if list_ is not None else [])}
    templates = {template["name"]: template for template in resource["spec"]["templates"]}
    moved: list[Element] = []

    def walk(value: Value, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        for key in NODES:
            nodes = value.member(key)
            for i, (before, after) in enumerate(zip(old.get(key, ()), new.get(key, ()), strict=True)):
                for kind in BLOCKS:
                    block = after.get(kind)
                    if nodes is None or not isinstance(block, dict) or "body" not in block or "body" in before[kind]:
                        continue
                    name = before[kind]["template"]
                    node = nodes.value.elements[i].value
                    node.flow = False
                    body = _put_in_place(_member(node, kind).value, own[name])
                    moved.append(own[name])
                    walk(body, templates[name], block["body"])

    walk(spec, resource["spec"], inner["spec"])
    for template in inner["spec"].get("templates", ()):
        walk(own[template["name"]].value, templates[template["name"]], template)
    if list_ is not None:
        list_.value.elements = [one for one in list_.value.elements if one not in moved]
        if not list_.value.elements:
            spec.elements.remove(list_)
            found.end = [*[line for line in (*list_.above, list_.behind, *list_.below) if line], *found.end]
    return _checked(found, text, hoist(resource).resource)


def flat(text: str, inputs: Mapping[str, Mapping[str, Any]]) -> str:
    """A document of a TaskGraph with a template for each body. `inputs` has the object schemas of the inputs that were
    not written, by the names of the templates. Raises `FormRefused`.
    """
    found, resource = _read(text)
    hoisted = hoist(resource)
    if not hoisted.origins:
        return rewritten(found, text)
    due = with_inputs(hoisted.resource, inputs)
    made: dict[int, Element] = {}
    for at, origin in sorted(hoisted.origins.items(), key=lambda one: len(one[1]), reverse=True):
        index = int(at[2])
        made[index] = _taken_out(found.root, origin, due["spec"]["templates"][index], hoisted)
    spec = _spec(found)
    list_ = spec.member("templates")
    if list_ is None:
        list_ = Element(Value("list"), "templates", "templates")
        spec.elements.append(list_)
    list_.value.flow = False
    list_.value.elements += [made[index] for index in sorted(made)]
    return _checked(found, text, due)


def _read(text: str) -> tuple[Layout, dict[str, Any]]:
    try:
        found = layout(text)
    except NotLaidOut as left:
        raise FormRefused(f"it has {left}, whose form is left alone") from left
    resource = compose(Source("", text)).value
    if found is None or not isinstance(resource, dict):
        raise FormRefused("it is no resource")
    return found, resource


def _spec(found: Layout) -> Value:
    return _member(found.root, "spec").value


def _member(value: Value, name: str) -> Element:
    member = value.member(name)
    if member is None or member.value.style == "*":
        raise FormRefused(_REFUSED)
    return member


def _text(member: Element | None) -> str | None:
    return member.value.content if member is not None else None


def _put_in_place(block: Value, template: Element) -> Value:
    """A template as the body of a block, instead of the name of the template."""
    member = _member(block, "template")
    name = _member(template.value, "name")
    body = Value("map", elements=[one for one in template.value.elements if one is not name])
    comments = [*member.above, *template.above, *name.above, member.behind, *name.below, *template.below]
    element = Element(body, "body", "body", above=[line for line in comments if line], below=member.below)
    element.behind, element.behind_column = name.behind or template.behind, 0
    if body.elements and body.elements[0].above[:1] == [""]:
        body.elements[0].above.pop(0)
    block.elements[block.elements.index(member)] = element
    block.flow = False
    return body


def _taken_out(root: Value, place: tuple[Any, ...], template: Mapping[str, Any], hoisted: Hoisted) -> Element:
    """The body at a place as an item of templates; the name of the template comes in its place."""
    value = root
    for step in place[:-1]:
        value = value.elements[step].value if isinstance(step, int) else _member(value, step).value
    body = _member(value, "body")
    name = Element(written_value(template["name"]), "name", "name", behind=body.behind)
    members = [name, *body.value.elements]
    if template["name"] in hoisted.open:
        members.insert(1, Element(written_value(template["input"]), "input", "input"))
    item = Element(Value("map", elements=members), above=body.above, below=body.below)
    value.elements[value.elements.index(body)] = Element(written_value(template["name"]), "template", "template")
    return item


def _checked(found: Layout, text: str, due: dict[str, Any]) -> str:
    new = rewritten(found, text, same=False)
    made = hoist(compose(Source("", new)).value).resource
    if canonical(_by_name(made)) != canonical(_by_name(due)):
        raise FormRefused(_REFUSED)
    return new


def _by_name(resource: dict[str, Any]) -> dict[str, Any]:
    """A resource whose templates stand in the order of their names, which means nothing."""
    templates = sorted(resource["spec"].get("templates", ()), key=lambda one: str(one["name"]))
    return {**resource, "spec": {**resource["spec"], "templates": templates}}
