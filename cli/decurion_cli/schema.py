"""`decurion schema`: the JSON Schema of manifests, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from decurion_cli.exits import exits


def schema(
    graph: Annotated[
        list[Path] | None,
        typer.Option("--graph", metavar="FILE", help="File or folder whose names of resources are known. Repeatable."),
    ] = None,
) -> None:
    """Print a JSON Schema of manifests for editors.

    Save it, and name it in the first line of a manifest: # yaml-language-server: $schema=decurion.schema.json
    """
    from decurion_crds.editor import editor_schema
    from decurion_crds.loader import load

    known: dict[str, list[str]] = {}
    with exits():
        for document in load(graph or []).documents:
            known.setdefault(document.kind, []).append(document.name)
            templates = (document.raw.get("spec") or {}).get("templates") if document.kind == "TaskGraph" else None
            for template in templates if isinstance(templates, list) else ():
                if isinstance(template, dict) and isinstance(template.get("name"), str):
                    known.setdefault("template", []).append(template["name"])
        text = orjson.dumps(editor_schema(known), option=orjson.OPT_INDENT_2).decode()
    typer.echo(text)
