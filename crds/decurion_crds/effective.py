"""A graph with all that it leaves unsaid: the defaults of fields, and what the compiler works out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decurion_crds.compiled import CompiledGraph, Node, Scope
from decurion_crds.v1alpha1 import TaskGraph, TaskGraphSpec, Template

_NO_TRIES = ("transform", "code", "switch", "map", "graph", "loop", "approval")
"""Kinds whose `retry` has no effect."""


def effective(graph: TaskGraph, compiled: CompiledGraph) -> dict[str, Any]:
    """The resource as JSON with its defaults. Templates that nothing uses are as they were written."""
    shown = graph.model_dump(mode="json", by_alias=True, exclude_none=True)
    spec = _body(shown["spec"], graph.spec, compiled.root)
    for i, template in enumerate(graph.spec.templates):
        scope = compiled.templates.get(template.name)
        if scope is not None:
            spec["templates"][i] = _body(spec["templates"][i], template, scope)
    found: dict[str, Any] = {name: shown[name] for name in ("apiVersion", "kind")}
    metadata = {name: shown["metadata"][name] for name in ("name", "namespace") if name in shown["metadata"]}
    return found | {"metadata": metadata, "spec": _without_empty(spec)}


def _body(shown: dict[str, Any], written: TaskGraphSpec | Template, scope: Scope) -> dict[str, Any]:
    channels = {channel.name: channel for channel in scope.channels}
    for channel in shown.get("state", ()):
        initial = channels[channel["name"]].initial
        if initial is not None:
            channel["initial"] = initial
    for node in shown["nodes"]:
        _fill(node, scope.by_name[node["name"]])
    return shown


def _fill(shown: dict[str, Any], node: Node) -> None:
    shown["onFailure"] = node.on_failure
    if node.kind != "approval":  # its wait is bounded in its own block
        shown["timeoutSeconds"] = node.timeout_seconds
    if node.kind not in _NO_TRIES:
        shown["retry"] = {**_tries(node), **shown.get("retry", {})}
    if node.kind not in ("switch", "approval"):
        shown.setdefault("output", node.output)
    if node.context is not None:
        drawers = node.context.model_dump(mode="json")
        shown["context"] = {**drawers, "history": {"last": node.context.history}}
    if node.map is not None:
        shown["map"].setdefault("tolerate", node.map.tolerate.model_dump(exclude_none=True))


def _tries(node: Node) -> dict[str, int]:
    tries = {"transient": node.retry.transient, "repair": node.retry.repair}
    return tries | ({"replan": node.retry.replan} if node.agent is not None else {})


def _without_empty(value: Any) -> Any:
    """`value` without members that are empty lists and objects, of which the language makes nothing."""
    if not isinstance(value, Mapping):
        return [_without_empty(item) for item in value] if isinstance(value, list) else value
    kept = {name: _without_empty(member) for name, member in value.items()}
    return {name: member for name, member in kept.items() if member not in ({}, []) or name in ("initial", "default")}
