"""Another kind for a node: its block is replaced in the file, and nothing else is touched."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decurion_cli.checking import every_finding
from decurion_cli.manifests import Manifests, compiled
from decurion_crds.compiled import FINALLY, CompiledGraph
from decurion_crds.convert import SOURCES, TARGETS, Choices, convert
from decurion_crds.difference import differences
from decurion_crds.errors import InputError
from decurion_crds.findings import CompileFailed
from decurion_crds.loader import KEY, Document
from decurion_crds.loader.inline import scalar
from decurion_crds.v1alpha1 import Node as Written
from decurion_crds.v1alpha1 import TaskGraph, TaskGraphSpec, Template
from decurion_worker.rehearsal import find

KINDS = TARGETS
"""The kinds that a node may move to."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A file before and after, and what the new block lacks of the old one."""

    file: Path
    before: str
    after: str
    notes: tuple[str, ...] = ()


def set_kind(path: Path, node: str, kind: str, choices: Choices, *, graph: str = "") -> Changed:
    """The file with another block for a node; nothing is written.

    Of the old block is kept what carries over; `notes` say what does not. Raises `InputError`, `CompileFailed`; also
    when anything but the block would change.
    """
    manifests, before = compiled([path], graph, use_run=False, as_used=True)
    _, old = find(before, node)
    document, model = manifests.graphs[graph or before.name]
    place, written = _written(document, model, node)
    if old.kind not in SOURCES or kind == old.kind:
        what = f"it is {kind} already" if kind == old.kind else f"no other kind fulfils the contract of {old.kind}"
        raise InputError(f"{node}: {what}; choose a node of kind {', '.join(SOURCES)}, and another kind for it")
    if written.output is None and {kind, old.kind} - {"llm", "agent"}:
        shown = json.dumps(old.output, ensure_ascii=False)
        raise InputError(f"{node}: its output is not declared, so another kind may change it; write output: {shown}")
    raw: Any = document.raw
    for step in document.hoisted.written(place):
        raw = raw[step]
    if isinstance(raw[old.kind], dict) and "body" in raw[old.kind]:
        raise InputError(f"{node}: it has a body in place; make a template of it first (decurion graph fmt --flat)")
    made = convert(raw, old, kind, _with_known(choices, manifests, model))
    file = Path(document.file)
    text = file.read_bytes().decode()
    after = _replaced(text, document, (*place, old.kind), kind, made.block)
    changed = Changed(file, text, after, made.notes)
    _verify(manifests, before, changed, node)
    return changed


def _with_known(choices: Choices, manifests: Manifests, model: TaskGraph) -> Choices:
    """The names that the files have, for what the author leaves open."""
    known: dict[str, list[str]] = {"template": [template.name for template in model.spec.templates]}
    for document in manifests.loaded.documents:
        known.setdefault(document.kind, []).append(document.name)
    known["tool"] = [f"{document.name}/{tool.name}" for document, one in manifests.servers for tool in one.spec.tools]
    opening, closing = model.spec.delimiters or ("{{", "}}")
    return replace(choices, known=known, delimiters=(opening, closing))


def _written(document: Document, model: TaskGraph, path: str) -> tuple[tuple[str | int, ...], Written]:
    """Where a node stands in the resource, and what is written there."""
    *above, name = path.split(".")
    place: tuple[str | int, ...] = ("spec",)
    scope: TaskGraphSpec | Template = model.spec
    field, nodes = "nodes", scope.nodes
    for step in above:
        if step == FINALLY:
            field, nodes = FINALLY, scope.finally_
            continue
        by_name = {one.name: one for one in nodes}
        block = (by_name[step].map or by_name[step].graph or by_name[step].loop) if step in by_name else None
        template = block.template if block is not None else step
        names = [one.name for one in model.spec.templates]
        if template not in names:
            raise InputError(f"{path}: the template is not in this file; name the file that has it")
        place = ("spec", "templates", names.index(template or ""))
        scope = model.spec.templates[names.index(template or "")]
        field, nodes = "nodes", scope.nodes
    index = [one.name for one in nodes].index(name)
    return (*place, field, index), nodes[index]


def _replaced(text: str, document: Document, place: tuple[str | int, ...], kind: str, block: Any) -> str:
    """The text with the member at `place` replaced by one of another name and value."""
    start, end, indent = _member(text, document, place)
    lines = _flow(kind, block) if indent is None else _lines(kind, block, indent)
    ending = "\r\n" if "\r\n" in text else "\n"
    return text[:start] + lines.replace("\n", ending) + text[end:]


def _member(text: str, document: Document, place: tuple[str | int, ...]) -> tuple[int, int, int | None]:
    """Where a member of an object begins and ends in the text, and its indent where it stands on lines of its own."""
    key, value = document.span((*place, KEY)), document.span(place)
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    shift = 1 if text.startswith("\ufeff") else 0
    start = starts[key.line - 1] + key.column - 1 + (shift if key.line == 1 else 0)
    before = text[starts[key.line - 1] : start].lstrip("\ufeff")
    if before.strip(" -"):
        return start, starts[value.end_line - 1] + value.end_column - 1, None
    lines = text.split("\n")
    last = number = key.line
    while number < len(lines):
        line = lines[number].rstrip("\r")
        if line.strip() and len(line) - len(line.lstrip(" ")) < key.column:
            break
        number += 1
        if line.strip():
            last = number
    return start, min(starts[last], len(text)), key.column - 1


def _flow(kind: str, block: Any) -> str:
    return f"{kind}: {json.dumps(block, ensure_ascii=False)}"


def _lines(kind: str, block: Any, indent: int) -> str:
    """A member in block form; the first line stands where the old one began."""
    inner = " " * (indent + 2)
    if isinstance(block, str):
        return f"{kind}: |\n" + "".join(f"{inner}{line}\n" for line in block.splitlines())
    found = f"{kind}:\n"
    for name, value in block.items():
        if isinstance(value, str) and "\n" in value:
            found += f"{inner}{scalar(name, key=True)}: |-\n"
            found += "".join(f"{inner}  {line}\n" for line in value.splitlines())
        else:
            found += f"{inner}{scalar(name, key=True)}: {json.dumps(value, ensure_ascii=False)}\n"
    return found


def _verify(manifests: Manifests, before: CompiledGraph, changed: Changed, node: str) -> None:
    """Raises when the changed file does not compile, or is another graph in anything but the block of the node."""
    from decurion_cli.checking import compiled_texts

    texts = {Path(d.file): Path(d.file).read_bytes().decode() for d in manifests.loaded.documents}
    texts[changed.file] = changed.after
    errors = [finding for finding in every_finding(texts) if finding.severity == "error"]
    if errors:
        raise CompileFailed(errors)
    after = compiled_texts(texts)[before.name]
    # A template that nothing used until now, or that nothing uses any more, is what it was.
    found = [one for one in differences(before, after) if one.what != "template"]
    others = [one for one in found if one.parts != ("block",)]
    if others:
        told = ", ".join(f"{one.what} {one.name}" for one in others)
        raise InputError(f"{node}: more than its block would change ({told}); declare its output, and try again")


__all__ = ["KINDS", "Changed", "set_kind"]
