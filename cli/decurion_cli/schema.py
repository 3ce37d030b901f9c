"""`decurion schema`: the JSON Schema of manifests, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from decurion_cli.exits import exits
from decurion_crds.errors import InputError
from decurion_crds.findings import CompileFailed, listed


def schema(
    graph: Annotated[
        list[Path] | None,
        typer.Option("--graph", metavar="FILE", help="File or folder whose names of resources are known. Repeatable."),
    ] = None,
    kind: Annotated[str, typer.Option("--kind", help="One kind of manifests, such as TaskGraph.")] = "",
) -> None:
    """Print a JSON Schema of manifests for editors.

    Save it, and name it in the first line of a manifest: # yaml-language-server: $schema=decurion.schema.json
    With --graph the names of resources, templates and nodes of these files are the only ones that it allows.

    Example: decurion schema --graph . > decurion.schema.json
    """
    from decurion_crds.editor import editor_schema, schema_text
    from decurion_crds.loader import load
    from decurion_crds.v1alpha1 import KINDS

    known: dict[str, list[str]] = {}
    with exits():
        if kind and kind not in KINDS:
            raise InputError(f"--kind {kind}: there is no such kind; write {listed(sorted(KINDS), last='or')}")
        loaded = load(graph or [])
        # Files may be in the middle of being written; those that are none, or cannot be read, hold no names at all.
        if unread := [finding for finding in loaded.findings if finding.code == "FILE"]:
            raise CompileFailed(unread)
        for document in loaded.documents:
            known.setdefault(document.kind, []).append(document.name)
            if document.kind == "TaskGraph":
                known.setdefault("template", []).extend(_names(document.hoisted.resource.get("spec"), "templates"))
                known.setdefault("node", []).extend(_nodes(document.hoisted.resource.get("spec")))
        text = schema_text(editor_schema(known, kind=kind))
    typer.echo(text, nl=False)


def _nodes(spec: Any) -> list[str]:
    """The names of the nodes of a graph, its templates and bodies. The files may be in the middle of being written."""
    templates = spec.get("templates") if isinstance(spec, dict) else None
    scopes = [spec, *(templates if isinstance(templates, list) else [])]
    return [name for scope in scopes for field in ("nodes", "finally") for name in _names(scope, field)]


def _names(scope: Any, field: str) -> list[str]:
    found = scope.get(field) if isinstance(scope, dict) else None
    items = found if isinstance(found, list) else []
    return [one["name"] for one in items if isinstance(one, dict) and isinstance(one.get("name"), str)]
