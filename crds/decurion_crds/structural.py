"""The CustomResourceDefinitions, made from the models, and the admission policies beside them; the rules they keep;
`python -m decurion_crds.structural [--check]`.

The schemas are structural in the sense of Kubernetes, and keep rules of ours: no default in a spec (a default inside
a list is a difference that GitOps tools report for ever), every field described, every list, map and text bounded
but for free values, no field that YAML reads as another word.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from decurion_crds.loader.scalars import SAME, go_key, other_reading
from decurion_crds.policies import policy_manifests
from decurion_crds.v1alpha1.base import GROUP, RESOURCE_NAME, VERSION, Resource
from decurion_crds.v1alpha1.parse import KINDS

Crd = dict[str, Any]

MANIFESTS = Path(__file__).parent.parent / "manifests"
HEADER = "# Made from the models by `python -m decurion_crds.structural`; edit those.\n"

_KEPT = [
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
    "x-kubernetes-map-type",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
]
_DROPPED = frozenset({"title", "default", "description", "properties", "required", "items", "additionalProperties"})
_HANDLED = frozenset({"$ref", "anyOf", "const", "exclusiveMinimum"})
_FORBIDDEN = frozenset(
    [
        "$ref",
        "$schema",
        "$id",
        "definitions",
        "dependencies",
        "deprecated",
        "discriminator",
        "id",
        "patternProperties",
        "readOnly",
        "writeOnly",
        "xml",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "const",
        "if",
        "then",
        "else",
        "title",
        "externalDocs",
        "uniqueItems",
        "example",
    ]
)


def crd_manifests() -> list[Crd]:
    """All CustomResourceDefinitions, ordered by their names."""
    return sorted((_crd(model) for model in KINDS.values()), key=lambda crd: str(crd["metadata"]["name"]))


def structural_schema(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Schema of pydantic as structural schema: references in place, null and defaults gone.

    Raises `ValueError` for a keyword it does not know, so that nothing of a model is lost silently.
    """
    if "$ref" in schema:
        target = defs[schema["$ref"].removeprefix("#/$defs/")]
        schema = target | {key: value for key, value in schema.items() if key != "$ref"}
    if "anyOf" in schema:
        members = [member for member in schema["anyOf"] if member.get("type") != "null"]
        if len(members) != 1:
            raise ValueError(f"a structural schema has no alternatives: {schema['anyOf']}")
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return structural_schema(members[0] | rest, defs)
    unknown = schema.keys() - _DROPPED - _HANDLED - set(_KEPT)
    if unknown:
        raise ValueError(f"not known to the generator of structural schemas: {sorted(unknown)}")
    out: dict[str, Any] = {"description": schema["description"]} if "description" in schema else {}
    out |= {key: schema[key] for key in _KEPT if key in schema}
    if "const" in schema:
        out["enum"] = [schema["const"]]
    if "exclusiveMinimum" in schema:
        out |= {"minimum": schema["exclusiveMinimum"], "exclusiveMinimum": True}
    if "required" in schema:
        out["required"] = list(schema["required"])
    if "properties" in schema:
        out["properties"] = {name: structural_schema(below, defs) for name, below in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), Mapping):
        out["additionalProperties"] = structural_schema(schema["additionalProperties"], defs)
    if "items" in schema:
        out["items"] = structural_schema(schema["items"], defs)
    return out


def violations(crd: Mapping[str, Any]) -> list[str]:
    """What is against the rules of this page in a CustomResourceDefinition, as `path: sentence`. Empty when all is
    well.
    """
    found: list[str] = []
    for version in crd["spec"]["versions"]:
        root = version["schema"]["openAPIV3Schema"]
        for path, schema in _walk(root, ()):
            found += [f"{'.'.join(path) or '(root)'}: {problem}" for problem in _problems(path, schema)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the manifests, or with `--check` say which ones differ (exit status 1)."""
    parser = argparse.ArgumentParser(prog="python -m decurion_crds.structural", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a committed manifest differs")
    parser.add_argument("folder", nargs="?", type=Path, default=MANIFESTS, help="where the manifests are")
    options = parser.parse_args(arguments)
    due = {f"{crd['spec']['names']['plural']}.yaml": manifest_text(crd) for crd in crd_manifests()}
    due["policies/approvals.yaml"] = HEADER + "---\n".join(map(_dumped, policy_manifests()))
    present = {
        str(file.relative_to(options.folder)): file.read_text(encoding="utf-8")
        for file in sorted(options.folder.rglob("*.yaml"))
    }
    differ = sorted(name for name in due.keys() | present.keys() if due.get(name) != present.get(name))
    if options.check:
        for name in differ:
            sys.stderr.write(
                f"{options.folder / name} differs from the models; run python -m decurion_crds.structural\n"
            )
        return 1 if differ else 0
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in differ:
        if name in due:
            (options.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (options.folder / name).write_text(due[name], encoding="utf-8")
        else:
            (options.folder / name).unlink()
        sys.stderr.write(f"{options.folder / name}\n")
    return 0


def manifest_text(crd: Crd) -> str:
    """The file of one CustomResourceDefinition."""
    return HEADER + _dumped(crd)


def _dumped(manifest: Mapping[str, Any]) -> str:
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118)


class _Dumper(yaml.SafeDumper):
    """Without anchors, which nobody wants to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _crd(model: type[Resource]) -> Crd:
    kind = str(model.__name__)
    schema = model.model_json_schema(by_alias=True)
    defs = schema["$defs"]
    spec = structural_schema(schema["properties"]["spec"], defs)
    status = structural_schema(schema["properties"]["status"], defs) | {"default": {"observedGeneration": -1}}
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": _columns(model, {"spec": spec, "status": status}),
    }
    if model.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in model.selectable]
    version["schema"] = {"openAPIV3Schema": _root(model, spec, status)}
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": model.plural,
        "singular": kind.lower(),
        "shortNames": [model.short_name],
        "categories": [model.category],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{model.plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def _root(model: type[Resource], spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    described = {"type": "string"}
    return {
        "description": model.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": f"{GROUP}/{VERSION}.", **described},
            "kind": {"description": f"{model.__name__}.", **described},
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 63, "pattern": RESOURCE_NAME}},
            },
            "spec": spec,
            "status": status,
        },
    }


def _columns(model: type[Resource], properties: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = [
        {"name": name, "type": _column_type(path, properties), "jsonPath": path}
        | ({"priority": 1} if (name, path) in model.wide_columns else {})
        for name, path in (*model.columns, *model.wide_columns)
    ]
    return [*columns, {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]


def _column_type(path: str, properties: Mapping[str, Any]) -> str:
    here: Mapping[str, Any] = {"properties": properties}
    for step in path.removeprefix(".").split("."):
        here = here.get("properties", {}).get(step, {})
    return "integer" if here.get("type") == "integer" else "string"


def _walk(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every schema with its path; `{}` stands for the values of a map, `[]` for the items of a list."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from _walk(below, (*path, name))
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from _walk(schema["additionalProperties"], (*path, "{}"))
    if isinstance(schema.get("items"), Mapping):
        yield from _walk(schema["items"], (*path, "[]"))


def _problems(path: tuple[str, ...], schema: Mapping[str, Any]) -> Iterator[str]:
    free = schema.get("x-kubernetes-preserve-unknown-fields") is True
    kind = schema.get("type")
    if kind is None and not free and not schema.get("x-kubernetes-int-or-string"):
        yield "a structural schema has a type"
    for word in sorted(_FORBIDDEN & schema.keys()):
        yield f"{word} is not allowed"
    if "properties" in schema and "additionalProperties" in schema:
        yield "properties and additionalProperties exclude one another"
    if isinstance(schema.get("additionalProperties"), bool):
        yield "additionalProperties is a schema, or absent"
    if "default" in schema and path != ("status",):
        yield "a default makes a difference to what was applied; keep defaults in the compiler"
    if path[-1:] not in (("[]",), ("{}",)) and path[:1] != ("metadata",) and not schema.get("description"):
        yield "a description is missing"
    if path and path[-1] not in ("[]", "{}") and (go_key(path[-1]) != path[-1] or other_reading(path[-1]) is not SAME):
        yield "YAML reads this name as another word"
    yield from _list_problems(schema)
    if path[:1] == ("spec",):
        yield from _bound_problems(schema, free)


def _list_problems(schema: Mapping[str, Any]) -> Iterator[str]:
    if schema.get("type") == "array" and "items" not in schema:
        yield "a list says what its items are"
    if schema.get("type") == "array" and "x-kubernetes-list-type" not in schema:
        yield "a list says who owns it (x-kubernetes-list-type)"
    if schema.get("x-kubernetes-list-type") == "map":
        items = schema.get("items", {})
        for key in schema.get("x-kubernetes-list-map-keys", ()):
            if key not in items.get("required", ()):
                yield f"{key} is a key of the list and must be required"
            if items.get("properties", {}).get(key, {}).get("type") not in ("string", "integer"):
                yield f"{key} is a key of the list and must be a text or an integer"


def _bound_problems(schema: Mapping[str, Any], free: bool) -> Iterator[str]:
    kind = schema.get("type")
    if kind == "string" and not schema.keys() & {"maxLength", "enum"}:
        yield "a text is bounded by maxLength"
    if kind == "array" and "maxItems" not in schema:
        yield "a list is bounded by maxItems"
    if kind == "object" and "additionalProperties" in schema and "maxProperties" not in schema:
        yield "a map is bounded by maxProperties"
    if kind == "object" and not free and not schema.keys() & {"properties", "additionalProperties"}:
        yield "an object says what is in it"


if __name__ == "__main__":
    sys.exit(main())
