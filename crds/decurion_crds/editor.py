"""The JSON Schema of manifests for editors: flat, described, one property for each block of a node.

It is made of the schemas of the CustomResourceDefinitions, so an editor knows each field that the API server knows. It
is not the compiler: expressions are texts to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from decurion_crds.structural import crd_manifests
from decurion_crds.v1alpha1 import API_VERSION

_COUNTED = re.compile(r"\(has\(self\.(\w+)\) \? 1 : 0\)")
_BODIES = ("map", "graph", "loop")
_NAMED: Mapping[tuple[str, str], str] = {
    ("llm", "ref"): "LLM",
    ("tool", "server"): "MCPServer",
    ("agent", "ref"): "Agent",
    ("graph", "ref"): "TaskGraph",
    ("map", "ref"): "TaskGraph",
    ("loop", "ref"): "TaskGraph",
    ("spec", "graph"): "TaskGraph",
    ("spec", "pool"): "WorkerPool",
    ("graph", "template"): "template",
    ("map", "template"): "template",
    ("loop", "template"): "template",
}
"""Fields (of what, which) that name a resource, or a template, of which the names may be known."""


def editor_schema(known: Mapping[str, Iterable[str]] | None = None) -> dict[str, Any]:
    """A JSON Schema (draft 7, which every editor reads) for one manifest of any kind.

    `known` has names by kind (and by `template`): fields that name one of these then allow no others.
    """
    names = {kind: sorted(set(found)) for kind, found in (known or {}).items()}
    branches = []
    kinds = []
    for crd in crd_manifests():
        kind = str(crd["spec"]["names"]["kind"])
        kinds.append(kind)
        (version,) = crd["spec"]["versions"]
        root = version["schema"]["openAPIV3Schema"]
        spec = _plain(root["properties"]["spec"], "spec", names)
        then = {"description": root["description"], "properties": {"spec": spec}}
        branches.append({"if": {"required": ["kind"], "properties": {"kind": {"const": kind}}}, "then": then})
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Decurion",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": API_VERSION, "description": "Version of the API."},
            "kind": {"enum": kinds, "description": "Kind of the resource."},
            "metadata": {"type": "object", "description": "The name of the resource, as in {name: earnings}."},
            "spec": {"type": "object"},
        },
        "allOf": branches,
    }


def _plain(schema: Mapping[str, Any], name: str, known: Mapping[str, list[str]]) -> dict[str, Any]:
    """A structural schema, called `name` where it stands, as plain JSON Schema."""
    out = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if schema.get("x-kubernetes-int-or-string"):
        out["type"] = ["string", "integer"]
        del out["maxLength"]
    if out.get("exclusiveMinimum") is True:
        out["exclusiveMinimum"] = out.pop("minimum")
    if "items" in schema:
        out["items"] = _plain(schema["items"], name, known)
    if "additionalProperties" in schema:
        out["additionalProperties"] = _plain(schema["additionalProperties"], name, known)
    if "properties" in schema:
        out["properties"] = {field: _field(name, field, below, known) for field, below in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            out["additionalProperties"] = False
    bodied = name in _BODIES and "template" in out.get("properties", {})
    if bodied:
        text = "A template in place: its input (or none), state, nodes and output."
        out["properties"]["body"] = {"type": "object", "description": text}
        out["required"] = [field for field in out.get("required", []) if field != "template"]
    groups = list(_exclusive(schema, bodied))
    if groups:
        out["allOf"] = groups
    return out


def _field(owner: str, field: str, below: Mapping[str, Any], known: Mapping[str, list[str]]) -> dict[str, Any]:
    plain = _plain(below, field, known)
    names = known.get(_NAMED.get((owner, field), ""))
    return {**plain, "enum": names} if names else plain


def _exclusive(schema: Mapping[str, Any], bodied: bool) -> Iterable[dict[str, Any]]:
    """What the rules of the CRD say of fields that exclude one another."""
    for rule in schema.get("x-kubernetes-validations", ()):
        fields = _COUNTED.findall(rule["rule"])
        if not fields or not rule["rule"].endswith((" == 1", " <= 1")):
            continue
        choices: list[dict[str, Any]] = [{"required": [field]} for field in fields]
        if bodied and "template" in fields:
            choices.append({"required": ["body"]})
        if rule["rule"].endswith(" <= 1"):
            choices.append({"not": {"anyOf": list(choices)}})
        yield {"oneOf": choices}
