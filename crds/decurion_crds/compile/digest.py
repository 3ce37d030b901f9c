"""Digests of nodes and scopes: what decides a result, and nothing else.

A node's digest stands in every record of it, so equal digests mean that a result may be taken over, where the same tool
servers gave it: who serves a tool is not part of the state of a run. It covers the node's own fields, the scope of its
template and all below it, and of its model what can change an answer: protocol, model, parameters, the way structure is
asked for, and scripted answers; the same of the models that may answer in its place. Left out are what only changes
where or how fast an answer is had (endpoint, token, limits, concurrency, the place of a tool server), the author's
spelling (`src` beside the rewritten `py`), and what follows from the rest (order, reads).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decurion_crds.canonical import Json, canonical, digest
from decurion_crds.compiled import Node, Scope

_OF_NODE = ("after", "parents", "reads", "digest")
_NO_TOOLS: Mapping[str, Scope] = {}
_OF_CALLS = ("repeatable", "concurrency")
"""What decides only when a tool is called, and whether it is called again."""
_OF_MODEL = ("protocol", "model", "parameters", "structuredOutput", "scripted")


def node_digest(
    node: Node,
    *,
    template: Scope | None,
    llms: Sequence[Mapping[str, Any]] = (),
    tools: Mapping[str, Scope] = _NO_TOOLS,
) -> str:
    """The digest of a node, given the scope that it runs, those of its tools, and the specs of the models that it may
    ask, its own first.
    """
    own = {key: value for key, value in _plain(node.to_json()).items() if key not in _OF_NODE}
    if node.map is not None:
        own["map"] = {key: value for key, value in own["map"].items() if key not in ("template", "concurrency")}
    if node.graph is not None:
        own.pop("graph")
    if node.tool is not None:
        _drop(own["tool"], _OF_CALLS)
    if node.loop is not None:
        own["loop"] = {key: value for key, value in own["loop"].items() if key != "template"}
    if node.agent is not None:
        own["agent"].pop("model")
        for tool in own["agent"].get("tools", ()):
            if "graph" in tool:
                tool["graph"] = tools[tool["graph"]].digest
            else:
                _drop(tool["call"], _OF_CALLS)
    if node.llm is not None:
        own["llm"] = {key: value for key, value in own["llm"].items() if key != "ref"}
    asked = [{key: llm[key] for key in _OF_MODEL if key in llm} for llm in llms]
    model = {**asked[0], "fallback": asked[1:]} if len(asked) > 1 else asked[0] if asked else None
    scope = template.digest if template is not None else None
    return digest("node/v0", canonical({"node": own, "template": scope, "model": model}))


def scope_digest(scope: Scope, *, final: Scope | None = None) -> str:
    """The digest of a scope whose nodes have theirs, and so has its `final`."""
    own = _plain(scope.to_json())
    if final is not None:
        own["final"] = final.digest
    own["nodes"] = [[node.name, node.digest] for node in scope.nodes]
    for key in ("digest", "order", "leaf"):
        own.pop(key, None)
    return digest("scope/v0", canonical(own))


def _drop(value: dict[str, Json], names: Sequence[str]) -> None:
    for name in names:
        value.pop(name, None)


def _plain(value: Json) -> Json:
    """`value` with only `py` left of an expression or source, which is told from other objects by having one."""
    if isinstance(value, dict):
        if "src" in value and "py" in value:
            return value["py"]
        return {key: _plain(below) for key, below in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
