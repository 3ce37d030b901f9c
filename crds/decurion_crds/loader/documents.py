"""Files and folders of manifests to documents, read as kubectl reads them, with the place of every value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from decurion_crds.findings import Finding, Fix
from decurion_crds.loader.compose import Composed, Problem, compose
from decurion_crds.loader.source import Source, Spot
from decurion_crds.v1alpha1 import GROUP, LLM, TaskGraph, TaskGraphRun, WorkerPool
from decurion_crds.v1alpha1.parse import KEY, Place, parse_resource, place_text

MAX_FILE_BYTES = 8 * 1024 * 1024
SUFFIXES = (".json", ".yaml", ".yml")
"""What kubectl takes from a folder."""

AnyResource: TypeAlias = LLM | TaskGraph | TaskGraphRun | WorkerPool

_SEPARATOR = re.compile(r"^---(?P<rest>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Document:
    """One resource as written. `raw` is its JSON without null members of objects; `kind` and `name` are "" when
    missing.
    """

    file: str
    api_version: str
    kind: str
    name: str
    namespace: str | None
    raw: dict[str, Any]
    _source: Source = field(repr=False, compare=False)
    _spots: dict[Place, Spot] = field(repr=False, compare=False)

    @property
    def ours(self) -> bool:
        """Whether it belongs to this API group, or cannot be told to belong to another."""
        return not self.api_version or self.api_version.partition("/")[0] == GROUP

    def position(self, place: Place, offset: int | None = None) -> tuple[int, int]:
        """Line and column (from 1) of the value at `place`, or of the nearest one above it.

        A place that ends with `KEY` is that of a key. With `offset`, the place of that character inside a scalar.
        """
        while place not in self._spots and place:
            place, offset = place[:-1], None
        spot = self._spots.get(place, self._source.first)
        if offset is not None:
            value: Any = self.raw
            for step in place:
                value = value[step]
            if isinstance(value, str):
                return self._source.inside(spot, value, offset)
        return spot.line, spot.column

    def locate(self, place: Place, offset: int | None = None) -> tuple[str, int, int]:
        """File, line and column of `place`, as `position`."""
        return self.file, *self.position(place, offset)

    def parse(self) -> tuple[AnyResource | None, list[Finding]]:
        """The model, or None and why not."""
        return parse_resource(self.raw, locate=self.locate)


@dataclass(frozen=True)
class Loaded:
    """All documents of some files in their order, and what is wrong with the files as YAML."""

    documents: list[Document] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def parse(self) -> tuple[list[tuple[Document, AnyResource]], list[Finding]]:
        """The models of all documents of this API group, and every finding, those of the files included."""
        models: list[tuple[Document, AnyResource]] = []
        findings = list(self.findings)
        for document in self.documents:
            if document.ours:
                model, found = document.parse()
                findings += found
                if model is not None:
                    models.append((document, model))
        files = {finding.file: i for i, finding in reversed(list(enumerate(findings)))}
        findings.sort(key=lambda finding: (files[finding.file], finding.line or 0, finding.column or 0))
        return models, findings


def load(paths: Sequence[Path]) -> Loaded:
    """The documents of files and folders (of a folder: its YAML and JSON files, by name, without its own folders).

    Nothing is raised for what is in the files, or for files that are missing: see `findings`.
    """
    loaded = Loaded()
    for path in paths:
        for file in _files(path, loaded.findings):
            text = _text(file, loaded.findings)
            if text is not None:
                one = load_text(text, str(file))
                loaded.documents.extend(one.documents)
                loaded.findings.extend(one.findings)
    _duplicates(loaded)
    return loaded


def load_text(text: str, file: str) -> Loaded:
    """The documents of one text that came from `file`."""
    loaded = Loaded()
    for source, separator in _split(text, file):
        if separator is not None:
            loaded.findings.append(separator)
            continue
        composed = compose(source)
        document = _document(source, composed, loaded.findings)
        if document is not None:
            loaded.documents.append(document)
        ours = document is None or document.ours
        loaded.findings.extend(
            _finding(source, composed, problem) for problem in composed.problems if ours or problem.code != "YAML001"
        )
    return loaded


def _files(path: Path, findings: list[Finding]) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not files:
            findings.append(
                Finding("FILE", "", "there is no YAML or JSON file in this folder; name another", file=str(path))
            )
        return files
    if not path.exists():
        findings.append(Finding("FILE", "", "there is no such file; check its name", file=str(path)))
        return []
    return [path]


def _text(file: Path, findings: list[Finding]) -> str | None:
    try:
        content = file.read_bytes()
        if len(content) > MAX_FILE_BYTES:
            size = f"the file has {len(content):,} bytes and may have {MAX_FILE_BYTES:,}"
            findings.append(Finding("FILE", "", f"{size}; keep data out of manifests", file=str(file)))
            return None
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        findings.append(Finding("FILE", "", f"byte {error.start} is no UTF-8; save the file as UTF-8", file=str(file)))
    except OSError as error:
        findings.append(
            Finding("FILE", "", f"the file cannot be read ({error.strerror}); check its rights", file=str(file))
        )
    return None


def _split(text: str, file: str) -> Iterator[tuple[Source, Finding | None]]:
    """The documents of `text`, cut at lines that start with ---, as kubectl cuts before it reads any YAML."""
    start = line = 0
    for match in _SEPARATOR.finditer(text):
        yield Source(file, text[start : match.start()], line + 1), None
        line += text.count("\n", start, match.end()) + 1
        start = min(match.end() + 1, len(text))
        rest = match["rest"].strip()
        if rest and not rest.startswith("#"):
            message = "nothing but a comment may follow ---; start the document on the next line"
            yield Source(file, "", line), Finding("YAML", "", message, file=file, line=line, column=4)
    yield Source(file, text[start:], line + 1), None


def _document(source: Source, composed: Composed, findings: list[Finding]) -> Document | None:
    raw = composed.value
    if raw is None:
        return None
    spot = composed.spots.get((), source.first)
    if not isinstance(raw, dict):
        message = "a resource is an object with apiVersion and kind, and this document is none; remove it"
        findings.append(Finding("KIND", "", message, file=source.file, line=spot.line, column=spot.column))
        return None
    if raw.get("kind") == "List" and raw.get("apiVersion") == "v1":
        message = "a List is not read here; write its items as documents, separated by lines ---"
        findings.append(Finding("NOT-SUPPORTED", "", message, file=source.file, line=spot.line, column=spot.column))
        return None
    metadata = raw.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    return Document(
        file=source.file,
        api_version=_word(raw.get("apiVersion")),
        kind=_word(raw.get("kind")),
        name=_word(named.get("name")) or _word(named.get("generateName")),
        namespace=_word(named.get("namespace")) or None,
        raw=raw,
        _source=source,
        _spots=composed.spots,
    )


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _finding(source: Source, composed: Composed, problem: Problem) -> Finding:
    place = problem.place[:-1] if problem.place[-1:] == (KEY,) else problem.place
    return Finding(
        problem.code,
        place_text(composed.value, place),
        problem.message,
        severity="warning" if problem.code == "YAML001" else "error",
        file=source.file,
        line=problem.spot.line,
        column=problem.spot.column,
        fix=Fix(*problem.fix) if problem.fix else None,
    )


def _duplicates(loaded: Loaded) -> None:
    first: dict[tuple[str, str | None, str], Document] = {}
    for document in loaded.documents:
        if not document.ours or not document.kind or not document.name:
            continue
        before = first.setdefault((document.kind, document.namespace, document.name), document)
        if before is not document and "generateName" not in document.raw.get("metadata", {}):
            line, column = document.position(("metadata", "name"))
            where = f"{before.file}:{before.position(('metadata', 'name'))[0]}"
            message = f'there is already a {document.kind} "{document.name}" at {where}; rename one of them'
            finding = Finding("DUPLICATE-NAME", "metadata.name", message)
            loaded.findings.append(replace(finding, file=document.file, line=line, column=column))
