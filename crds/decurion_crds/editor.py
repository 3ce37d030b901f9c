"""The JSON Schema of manifests for editors: flat, described, one property for each block of a node.

It is made of the schemas of the CustomResourceDefinitions, so an editor knows each field that the API server knows. It
is not the compiler: expressions are texts to it. `python -m decurion_crds.editor [--check]` writes `docs/schema`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from decurion_crds.structural import crd_manifests
from decurion_crds.v1alpha1 import API_VERSION, IDENTIFIER
from decurion_crds.v1alpha1.base import RESOURCE_NAME, SCHEMA_NAME

FILE = Path(__file__).parents[2] / "docs" / "schema" / "decurion.json"

_NEEDS = re.compile(r"!has\(self\.(\w+)\) \|\| has\(self\.(\w+)\)")
_WHEN = re.compile(r"self\.(\w+) != '(\w+)' \|\| (?:has\(self\.\w+\)|\(has\(self\.\w+\)(?: && has\(self\.\w+\))*\))")
_HAS = re.compile(r"has\(self\.(\w+)\)")
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
    ("spec", "fallback"): "LLM",
    ("graph", "template"): "template",
    ("map", "template"): "template",
    ("loop", "template"): "template",
    ("nodes", "after"): "node",
    ("finally", "after"): "node",
    ("cases", "nodes"): "node",
    ("switch", "default"): "node",
    ("merge", "order"): "node",
}
"""Fields (of what, which) that name a resource, template or node, of which the names may be known."""
_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("with", "load", "writes", "next", "choices"), IDENTIFIER),
    "schemas": SCHEMA_NAME,
}
"""Maps whose keys are names of this form."""
_EXAMPLES: Mapping[tuple[str, str], Any] = {
    ("spec", "schemas"): {"Order": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}},
    ("spec", "input"): {"orders": {"type": "array", "items": "Order"}, "note?": {"type": "string"}},
    ("spec", "state"): [{"name": "steps", "schema": {"type": "array"}, "merge": "append"}],
    ("nodes", "when"): "len(input.orders) > 0",
    ("nodes", "with"): {"orders": "input.orders"},
    ("nodes", "load"): {"letter": {"from": "input.file"}},
    ("nodes", "output"): {"total": {"type": "number"}},
    ("nodes", "writes"): {"steps": "[output.total]"},
    ("nodes", "after"): ["check"],
    ("nodes", "transform"): {"total": "sum([order.price for order in orders])"},
    ("nodes", "code"): '{"total": sum([order["price"] for order in orders])}',
    ("nodes", "tool"): {"server": "search", "name": "find", "arguments": {"query": "{{ text }}"}},
    ("nodes", "llm"): {"ref": "fast", "prompt": "What does this letter want?\n{{ letter }}"},
    ("nodes", "agent"): {"ref": "analyst", "prompt": "Summarise {{ facts }}"},
    ("nodes", "graph"): {"template": "answer"},
    ("nodes", "map"): {"items": "input.orders", "as": "order", "key": "order.id", "template": "one"},
    ("nodes", "loop"): {"template": "revise", "until": "output.good", "maxIterations": 4, "onExhausted": "succeed"},
    ("nodes", "switch"): {"value": "nodes.read.output.wants", "cases": [{"equals": "refund", "nodes": ["pay"]}]},
    ("nodes", "approval"): {"message": "Pay back {{ nodes.find.output.total }}?", "timeoutSeconds": 86_400},
}
"""What an editor shows of a field (of what, which)."""
_BODY = "#/definitions/body"


def editor_schema(known: Mapping[str, Iterable[str]] | None = None, *, kind: str = "") -> dict[str, Any]:
    """A JSON Schema (draft 7, which every editor reads) for one manifest of any kind, or of the one that is named.

    `known` has names by kind, by `template` and by `node`: fields that name one of these then allow no others. Raises
    `KeyError` for a kind that does not exist.
    """
    names = {one: sorted(set(found)) for one, found in (known or {}).items()}
    branches = []
    kinds = []
    crds = {str(crd["spec"]["names"]["kind"]): crd for crd in crd_manifests()}
    definitions = _definitions(crds["TaskGraph"], names) if kind in ("", "TaskGraph") else {}
    for name, crd in {kind: crds[kind]}.items() if kind else crds.items():
        kinds.append(name)
        (version,) = crd["spec"]["versions"]
        root = version["schema"]["openAPIV3Schema"]
        spec = _plain(root["properties"]["spec"], "spec", names)
        then = {"description": root["description"], "properties": {"spec": spec}}
        branches.append({"if": {"required": ["kind"], "properties": {"kind": {"const": name}}}, "then": then})
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Decurion",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": API_VERSION, "description": "Version of the API."},
            "kind": {"enum": kinds, "description": "Kind of the resource."},
            "metadata": {
                "type": "object",
                "description": "The name of the resource, as in {name: earnings}.",
                "properties": {"name": {"type": "string", "maxLength": 63, "pattern": RESOURCE_NAME}},
            },
            "spec": {"type": "object"},
        },
        "allOf": branches,
        **({"definitions": definitions} if definitions else {}),
    }


def _definitions(crd: Mapping[str, Any], known: Mapping[str, list[str]]) -> dict[str, Any]:
    """The body of a block: a template without its name."""
    (version,) = crd["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    body = _plain(spec["properties"]["templates"]["items"], "spec", known)
    del body["properties"]["name"]
    return {"body": body | {"required": [field for field in body["required"] if field != "name"]}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the schema of all kinds, or with `--check` say whether the committed one differs (exit status 1)."""
    parser = argparse.ArgumentParser(prog="python -m decurion_crds.editor", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the committed file differs")
    options = parser.parse_args(arguments)
    due = schema_text(editor_schema())
    if FILE.exists() and FILE.read_text(encoding="utf-8") == due:
        return 0
    if options.check:
        sys.stderr.write(f"{FILE} differs from the models; run python -m decurion_crds.editor\n")
        return 1
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(due, encoding="utf-8")
    sys.stderr.write(f"{FILE}\n")
    return 0


def schema_text(schema: Mapping[str, Any]) -> str:
    """A schema as the text of a file."""
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode() + "\n"


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
        out["properties"]["body"] = {"description": text, "allOf": [{"$ref": _BODY}]}
        out["required"] = [field for field in out.get("required", []) if field != "template"]
    groups = [*_exclusive(schema, bodied), *_needed(schema)]
    if groups:
        out["allOf"] = groups
    return out


def _field(owner: str, field: str, below: Mapping[str, Any], known: Mapping[str, list[str]]) -> dict[str, Any]:
    plain = _plain(below, field, known)
    names = known.get(_NAMED.get((owner, field), ""))
    if names and "items" in plain:
        plain["items"] = {**plain["items"], "enum": names}
    elif names:
        plain["enum"] = names
    if field in _KEYS and "additionalProperties" in plain:
        plain["propertyNames"] = {"pattern": _KEYS[field]}
    if (owner, field) in _EXAMPLES:
        plain["examples"] = [_EXAMPLES[owner, field]]
    return plain


def _needed(schema: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """What the rules of the CRD say of fields that need others."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if needs := _NEEDS.fullmatch(rule["rule"]):
            yield {"dependencies": {needs[1]: [needs[2]]}}
        elif when := _WHEN.fullmatch(rule["rule"]):
            condition = {"required": [when[1]], "properties": {when[1]: {"const": when[2]}}}
            yield {"if": condition, "then": {"required": _HAS.findall(rule["rule"])}}


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


if __name__ == "__main__":
    sys.exit(main())
