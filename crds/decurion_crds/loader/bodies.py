"""Bodies in place: what a file may nest where a cluster has a template.

`map: {items: …, body: {nodes: …, output: …}}` is the template `<node>Body` that nothing else uses, written where it is
used; the same for `graph` and `loop`. A body without `input` takes what its node gives it, and the compiler infers the
types. What goes to a cluster is the hoisted form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from decurion_crds.v1alpha1 import Place, place_text
from decurion_crds.v1alpha1.base import MAX_IDENTIFIER
from decurion_crds.v1alpha1.parse import KEY

BLOCKS = ("map", "graph", "loop")
"""The blocks that run a scope."""
NODES = ("nodes", "finally")
"""The fields of a scope that hold nodes."""
_SUFFIX = "Body"
_TEMPLATES = ("spec", "templates")


@dataclass(frozen=True, slots=True)
class Hoisted:
    """A TaskGraph whose bodies are templates.

    `origins` maps the place of each such template to that of its body as written, and `paths` the same by names. The
    input of those in `open` was not written.
    """

    resource: dict[str, Any]
    origins: Mapping[Place, Place] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    open: frozenset[str] = frozenset()

    def written(self, place: Place) -> Place:
        """Where a value of `resource` was written; where there was none, what it was made of."""
        origin = self.origins.get(place[:3])
        if origin is not None and place[3:] in ((), ("name",)):
            return (*origin, KEY)
        if origin is not None:
            place = (*origin, *place[3:])
        body = (*place[:-1], "body")
        return (*body, KEY) if place[-1:] == ("template",) and body in self.origins.values() else place

    def path(self, path: str) -> str:
        """A path by names, as the file has it."""
        for hoisted, written in self.paths.items():
            if path == hoisted or path.startswith((f"{hoisted}.", f"{hoisted}[")):
                return written + path[len(hoisted) :]
        return path


def hoist(resource: dict[str, Any]) -> Hoisted:
    """`resource` with a template for each body. What is no TaskGraph, or has none, stays as it is."""
    spec = resource.get("spec")
    if resource.get("kind") != "TaskGraph" or not isinstance(spec, dict) or not any(_bodies(spec)):
        return Hoisted(resource)
    return _Hoisting(resource, spec).hoisted()


def unhoist(resource: dict[str, Any]) -> dict[str, Any]:
    """`resource` with each template in place that one node alone runs and that has the name of that node's body."""
    spec = resource.get("spec")
    if resource.get("kind") != "TaskGraph" or not isinstance(spec, dict):
        return resource
    templates = {t["name"]: t for t in _objects(spec.get("templates")) if isinstance(t.get("name"), str)}
    used = [name for scope in (spec, *templates.values()) for name in _used(scope)]

    def filled(scope: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        def inner(node: str, _place: Place, block: dict[str, Any]) -> dict[str, Any]:
            name = block.get("template")
            own = isinstance(name, str) and name in templates and name not in path and used.count(name) == 1
            if not own or not str(name).startswith(_base(node)):
                return block
            moved.add(str(name))
            body = {key: value for key, value in templates[name].items() if key != "name"}
            rest = {key: value for key, value in block.items() if key != "template"}
            return {**rest, "body": filled(body, (*path, str(name)))}

        return _with_blocks(scope, inner)

    moved: set[str] = set()
    root = filled(spec, ())
    # What is nested in a template that stays is put there; what was moved is gone from the list.
    kept = [filled(template, (name,)) for name, template in templates.items() if name not in moved]
    kept = [template for template in kept if template["name"] not in moved]
    rest = {key: value for key, value in root.items() if key != "templates"}
    return {**resource, "spec": {**rest, **({"templates": kept} if kept else {})}}


def with_inputs(resource: dict[str, Any], inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A hoisted resource in which the templates of `inputs` declare their input: object schemas, as they were inferred.

    This is the form that a cluster takes.
    """
    templates = [
        {**t, "input": _fields(inputs[t["name"]])} if t.get("name") in inputs else t
        for t in resource["spec"].get("templates", ())
    ]
    return {**resource, "spec": {**resource["spec"], **({"templates": templates} if templates else {})}}


def _fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    required = schema.get("required", ())
    return {(name if name in required else f"{name}?"): below for name, below in schema.get("properties", {}).items()}


class _Hoisting:
    def __init__(self, resource: dict[str, Any], spec: dict[str, Any]) -> None:
        self._resource = resource
        self._spec = spec
        own = _objects(spec.get("templates"))
        self._taken = {t["name"] for t in own if isinstance(t.get("name"), str)}
        self._templates: list[Any] = list(spec["templates"]) if isinstance(spec.get("templates"), list) else []
        self._origins: dict[Place, Place] = {}
        self._paths: dict[str, str] = {}
        self._open: set[str] = set()

    def hoisted(self) -> Hoisted:
        root = self._scope(self._spec, ("spec",))
        for i, template in enumerate(list(self._templates)):
            if isinstance(template, dict) and (*_TEMPLATES, i) not in self._origins:
                self._templates[i] = self._scope(template, (*_TEMPLATES, i))
        resource = {**self._resource, "spec": {**root, "templates": self._templates}}
        return Hoisted(resource, self._origins, self._paths, frozenset(self._open))

    def _scope(self, scope: dict[str, Any], place: Place) -> dict[str, Any]:
        def inner(node: str, below: Place, block: dict[str, Any]) -> dict[str, Any]:
            body = block.get("body")
            if not _hoistable(block) or not isinstance(body, dict):
                return block
            name = self._name(node)
            here = (*place, *below, "body")
            at = len(self._templates)
            self._templates.append(None)
            self._origins[*_TEMPLATES, at] = here
            self._paths[f"templates.{name}"] = place_text(self._resource, here)
            if "input" not in body:
                self._open.add(name)
            self._templates[at] = {"name": name, **self._scope(body, here)}
            return {**{key: value for key, value in block.items() if key != "body"}, "template": name}

        return _with_blocks(scope, inner)

    def _name(self, node: str) -> str:
        base = _base(node)
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base[: MAX_IDENTIFIER - 4]}{number}", number + 1
        self._taken.add(name)
        return name


_Change: TypeAlias = Callable[[str, Place, dict[str, Any]], dict[str, Any]]
"""From the node's name, the block's place in its scope, and the block to another block."""


def _base(node: str) -> str:
    return node[: MAX_IDENTIFIER - len(_SUFFIX)] + _SUFFIX


def _hoistable(block: Mapping[str, Any]) -> bool:
    """Whether a block has a body and nothing that says the same; else it is for the models to refuse."""
    return isinstance(block.get("body"), dict) and "template" not in block and "ref" not in block


def _bodies(scope: Mapping[str, Any]) -> Iterator[bool]:
    for one in (scope, *_objects(scope.get("templates"))):
        yield from (_hoistable(block) for block in _blocks(one))


def _blocks(scope: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The blocks that run a scope, of the nodes of a scope that have a name."""
    for key in NODES:
        for node in _objects(scope.get(key)):
            blocks = (node.get(kind) for kind in BLOCKS if isinstance(node.get("name"), str))
            yield from (block for block in blocks if isinstance(block, dict))


def _used(scope: Mapping[str, Any]) -> Iterator[object]:
    """The templates that the nodes of a scope name, each as often as it is named."""
    yield from (block["template"] for block in _blocks(scope) if "template" in block)
    for key in NODES:
        for node in _objects(scope.get(key)):
            agent = node.get("agent")
            tools = _objects(agent.get("tools")) if isinstance(agent, dict) else []
            yield from (tool["template"] for tool in tools if "template" in tool)


def _with_blocks(scope: dict[str, Any], changed: _Change) -> dict[str, Any]:
    """A copy of a scope with other blocks; what is no node stays as it is."""
    lists: dict[str, list[Any]] = {}
    for key in NODES:
        if not isinstance(scope.get(key), list):
            continue
        lists[key] = []
        for i, node in enumerate(scope[key]):
            if isinstance(node, dict) and isinstance(node.get("name"), str):
                kinds = [kind for kind in BLOCKS if isinstance(node.get(kind), dict)]
                node = {**node, **{kind: changed(node["name"], (key, i, kind), node[kind]) for kind in kinds}}
            lists[key].append(node)
    return {**scope, **lists}


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
