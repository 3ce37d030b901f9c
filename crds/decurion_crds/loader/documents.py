"""Files and folders of manifests to documents, read as kubectl reads them, with the place of every value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from decurion_crds.findings import MAX_WORD, Finding, Fix, did_you_mean, quoted, shortened
from decurion_crds.loader.bodies import Hoisted, hoist
from decurion_crds.loader.compose import Composed, Problem, compose
from decurion_crds.loader.files import texts
from decurion_crds.loader.source import Source, Spot
from decurion_crds.v1alpha1 import GROUP
from decurion_crds.v1alpha1.fields import is_declared
from decurion_crds.v1alpha1.parse import (
    EXPRESSION_DUE,
    KEY,
    KINDS,
    UNQUOTED,
    AnyResource,
    Place,
    parse_resource,
    place_text,
)

_NAME: Place = ("metadata", "name")
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
    _nulls: list[Place] = field(repr=False, compare=False)

    @property
    def ours(self) -> bool:
        """Whether it belongs to this API group, or was probably meant to."""
        group, slash, _ = self.api_version.partition("/")
        meant = self.kind in KINDS and (not slash or did_you_mean(group, [GROUP]) is not None)
        return not self.api_version or group == GROUP or meant

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

    def spot(self, place: Place) -> Spot | None:
        """Where the value at a place as written stands; of a place that ends with `KEY`, the key."""
        return self._spots.get(place)

    def spots(self) -> Iterable[tuple[Place, Spot]]:
        """The place of every value and key, with its spot."""
        return self._spots.items()

    def locate(self, place: Place, offset: int | None = None) -> tuple[str, int, int]:
        """File, line and column of `place` in the hoisted form, as `position`."""
        return self.file, *self.position(self.hoisted.written(place), offset)

    def span(self, place: Place) -> Spot:
        """Where the key (of a place that ends with `KEY`) or value at `place` of the hoisted form begins and ends.

        Raises `KeyError` where nothing was written.
        """
        return self._spots[self.hoisted.written(place)]

    @cached_property
    def hoisted(self) -> Hoisted:
        """The resource as a cluster takes it: with a template for each body in place."""
        return hoist(self.raw)

    def as_written(self, finding: Finding) -> Finding:
        """A finding about the hoisted form, with its path as in the file."""
        return replace(finding, path=self.hoisted.path(finding.path)) if self.hoisted.paths else finding

    def parse(self) -> tuple[AnyResource | None, list[Finding]]:
        """The model, or None and why not."""
        model, found = parse_resource(self.hoisted.resource, locate=self.locate)
        findings = [self.as_written(finding) for finding in found]
        return model, [*map(self._with_quotes, findings), *self._null_fields(findings)]

    def _null_fields(self, findings: Sequence[Finding]) -> Iterator[Finding]:
        """Warnings for fields that are null, of which the ways to apply a manifest make different things."""
        kind = KINDS.get(self.kind)
        for place in self._nulls if kind is not None else ():
            path, name = place_text(self.raw, place), place[-1]
            about = (path, path.rpartition(".")[0] or "spec")
            known = any(one.path in about and f"{name} is missing" in one.message for one in findings)
            if kind is not None and place[0] == "spec" and is_declared(kind, place) and not known:
                message = f"{name} is null, which server-side apply refuses; remove it, or write a value"
                yield Finding("YAML001", path, message, "warning", *self.locate(place))

    def _with_quotes(self, finding: Finding) -> Finding:
        """What YAML takes for something else than a text: only here it is known how it was written."""
        if finding.code != "FIELD-TYPE" or finding.fix is not None:
            return finding
        at = (finding.line, finding.column)
        spots = (spot for spot in self._spots.values() if (spot.line, spot.column) == at and spot.style == "")
        word = next((self._source.between(spot) for spot in spots if spot.line == spot.end_line), "")
        expression = EXPRESSION_DUE.match(finding.message)
        if not word or word.startswith(("!", "&", "*")):
            return finding
        if expression:
            quoted_word = expression["instead"] or '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
            return replace(finding, fix=Fix(word, quoted_word))
        if not finding.message.endswith(UNQUOTED):
            return finding
        message = f'{finding.message.removesuffix(UNQUOTED)}; write "{shortened(word, MAX_WORD)}", in quotes'
        return replace(finding, message=message, fix=Fix(word, f'"{word}"'))


@dataclass(frozen=True)
class Loaded:
    """All documents of some files in their order, and what is wrong with the files as YAML."""

    documents: list[Document] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def parse(self) -> tuple[list[tuple[Document, AnyResource]], list[Finding]]:
        """The models of all documents of this API group, and every finding, those of the files included.

        Where a word that readers of YAML differ in has the wrong type, the error alone is told; where YAML swallowed
        something, what follows from that is not.
        """
        models: list[tuple[Document, AnyResource]] = []
        findings = list(self.findings)
        for document in self.documents:
            if document.ours:
                model, found = document.parse()
                findings = [one for one in findings if not _repeated(one, found)]
                found = independent(found, [one for one in findings if one.file == document.file])
                findings += found
                if model is not None:
                    models.append((document, model))
        files = {finding.file: i for i, finding in reversed(list(enumerate(findings)))}
        findings.sort(key=lambda finding: (files[finding.file], finding.line or 0, finding.column or 0))
        return models, findings


def independent(findings: Sequence[Finding], before: Sequence[Finding]) -> list[Finding]:
    """`findings` without those that follow from a part of the same file that YAML did not read as it was meant."""
    causes = [one for one in before if one.code == "YAML" and one.path]
    return [one for one in findings if not any(_follows(one, cause) for cause in causes if cause.file == one.file)]


def _follows(finding: Finding, cause: Finding) -> bool:
    if _inside(finding.path, cause.path):
        return True
    above, _, name = cause.path.rpartition(".")
    due = finding.message.removeprefix("metadata.").startswith(f"{name} is missing")
    return due and finding.path in (above, above or "spec")


def _repeated(warning: Finding, errors: Sequence[Finding]) -> bool:
    """Whether an error tells of the same word as a warning, or of what the word stands in."""
    if warning.code != "YAML001":
        return False
    place = (warning.file, warning.line, warning.column)
    same = [one for one in errors if one.file == warning.file and one.code in ("FIELD-TYPE", "NAME")]
    return any((one.file, one.line, one.column) == place or _inside(warning.path, one.path) for one in same)


def _inside(path: str, above: str) -> bool:
    below = path.removeprefix(above)
    return bool(above) and (path == above or (below != path and below[0] in ".["))


def load(paths: Sequence[Path]) -> Loaded:
    """The documents of files and folders (of a folder: its YAML and JSON files, by name, without its own folders); a
    file that is named twice is read once.

    Nothing is raised for what is in the files, or for files that are missing: see `findings`.
    """
    findings: list[Finding] = []
    return load_texts(texts(paths, findings), findings)


def load_texts(files: Iterable[tuple[Path, str]], findings: list[Finding] | None = None) -> Loaded:
    """The documents of texts with the files that they stand for; `findings` are those of reading them."""
    loaded = Loaded(findings=[] if findings is None else findings)
    for file, text in files:
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
    if _lists_ours(raw):
        message = "lists of resources are not read here; write the items as documents, separated by lines ---"
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
        _nulls=composed.nulls,
    )


def _lists_ours(raw: dict[str, Any]) -> bool:
    kind, items = _word(raw.get("kind")), raw.get("items")
    if not kind.endswith("List") or not isinstance(items, list):
        return False
    versions = [_word(one.get("apiVersion")) for one in (raw, *items) if isinstance(one, dict)]
    return any(version.partition("/")[0] == GROUP for version in versions)


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
    """One finding for each name that several resources of a kind have, at the second of them."""
    named: dict[tuple[str, str | None, str], list[Document]] = {}
    for document in loaded.documents:
        generated = "generateName" in document.raw.get("metadata", {})
        if document.ours and document.kind and document.name and not generated:
            named.setdefault((document.kind, document.namespace, document.name), []).append(document)
    for (kind, _, name), documents in named.items():
        if len(documents) > 1:
            first, second, *more = documents
            where = f"{first.file}:{first.position(_NAME)[0]}"
            beside = "".join(f", and at {one.file}:{one.position(_NAME)[0]}" for one in more[:3])
            remedy = "give each a name of its own" if more else "rename one of them"
            message = f"there is already {_article(kind)} {kind} {quoted(name)} at {where}{beside}; {remedy}"
            finding = Finding("DUPLICATE-NAME", "metadata.name", message)
            line, column = second.position(_NAME)
            loaded.findings.append(replace(finding, file=second.file, line=line, column=column))


def _article(kind: str) -> str:
    return "an" if kind[0] in "AEIOU" or kind in ("LLM", "MCPServer") else "a"
