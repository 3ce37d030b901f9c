"""From a manifest's object to its model, or to findings: all at once, one for each cause, in the words of the
language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from decurion_crds.canonical import canonical, drop_nulls
from decurion_crds.errors import ValueRefused
from decurion_crds.findings import MAX_WORD, Finding, Fix, did_you_mean, listed, quoted, shortened
from decurion_crds.v1alpha1.agent import Agent
from decurion_crds.v1alpha1.approval import Approval
from decurion_crds.v1alpha1.base import API_VERSION, MAX_SPEC_BYTES, MAX_SPEC_DEPTH, Model, Resource
from decurion_crds.v1alpha1.delimiters import DELIMITER
from decurion_crds.v1alpha1.elsewhere import here
from decurion_crds.v1alpha1.fields import field_of, literals, model_at
from decurion_crds.v1alpha1.llm import LLM
from decurion_crds.v1alpha1.mcpserver import MCPServer
from decurion_crds.v1alpha1.taskgraph import TaskGraph
from decurion_crds.v1alpha1.taskgraphrun import TaskGraphRun
from decurion_crds.v1alpha1.workerpool import WorkerPool
from decurion_crds.values import normalise

Place: TypeAlias = tuple[str | int, ...]
"""Where a value stands in its resource: keys and indices from the top (`("spec", "nodes", 0, "with", "facts")`)."""
KEY = "\0key"
"""A place that ends with KEY is that of the key itself, not of its value."""
Locate: TypeAlias = Callable[[Place], tuple[str, int, int] | None]
"""File, line and column of a place, counted from 1; None when it did not come from a file."""

_FORMS: dict[str, str] = {
    r"^[-._a-zA-Z0-9]+$": "letters, digits, - . and _",
    DELIMITER: "two to four signs, as in << and >>",
    r"^[-a-zA-Z0-9]+$": "letters, digits and -",
    r"^[0-9a-f]+$": "hexadecimal digits",
    r"^/[^!]+$": "a slash and a path, such as /extract or /extract[00003]/read",
    r"^https?://[^\s]+$": "an address such as https://host:8000/v1",
    r"^(s3|file)://[^\s]+$": "s3://bucket/key or file:///folder/file",
    r"^(s3|file|memory)://[^\s]+$": "s3://bucket/prefix or file:///folder",
}
"""What to write for a pattern of the models."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\Z")

AnyResource: TypeAlias = Agent | Approval | LLM | MCPServer | TaskGraph | TaskGraphRun | WorkerPool
KINDS: dict[str, type[AnyResource]] = {
    "Agent": Agent,
    "Approval": Approval,
    "LLM": LLM,
    "MCPServer": MCPServer,
    "TaskGraph": TaskGraph,
    "TaskGraphRun": TaskGraphRun,
    "WorkerPool": WorkerPool,
}
LATER_KINDS: dict[str, str] = {
    "Skill": "put the text into system of an llm node",
}

_NAMED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "TaskGraph": (("nodes", "node"), ("state", "channel"), ("templates", "template")),
    "MCPServer": (("tools", "tool"), ("headers", "header")),
}
"""Lists of a spec, and of its templates, whose items have names, with the noun for one."""

MAX_FAULTS = 200
"""Faults of one resource that are told one by one."""

UNQUOTED = "; put it into quotes"
"""How a message ends where a word of YAML is no text; the loader, which knows the word, writes it out."""
EXPRESSION_DUE = re.compile("an expression is (a text: write (?P<instead>.*), with the quotes|due)")
"""How a message begins where YAML made something else of an expression, with what to write where that is known."""

_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (str, "a text"),
    (Mapping, "an object"),
    (list, "a list"),
)
_DUE: dict[str, str] = {
    "string_type": "a text",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
}


def parse_resource(obj: object, *, locate: Locate | None = None) -> tuple[AnyResource | None, list[Finding]]:
    """The model of a resource of this API group, or None and why not.

    `obj` is the resource as JSON; members that are null count as absent. `locate` adds file, line and column to the
    findings. Nothing beyond size and depth is looked at in a spec that exceeds its bound.
    """
    report = _Reporter(obj, locate)
    model = _kind(obj, report)
    if model is None or not isinstance(obj, Mapping):
        return None, report.findings
    if _too_large(obj, report):
        return None, report.findings
    clean = drop_nulls(obj)
    parsed = None
    try:
        parsed = model.model_validate(clean, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        more, details = len(details) - MAX_FAULTS, details[:MAX_FAULTS]
        explained = [_explain(model, detail) for detail in details]
        meant = {(place[:-1], fix.new) for code, place, _, fix in explained if code == "FIELD-UNKNOWN" and fix}
        for detail, (code, place, message, fix) in zip(details, explained, strict=True):
            if code == "FIELD-MISSING" and (place, detail["loc"][-1]) in meant:
                continue
            report.add(code, place, message, fix)
        if more > 0:
            report.add("FIELD-VALUE", (), f"there are {more:,} more faults in this resource; mend those that are told")
    _duplicate_names(clean, report)
    _unsafe_values(clean.get("spec"), report)
    return (None if report.findings else parsed), report.findings


def place_text(obj: object, place: Sequence[str | int]) -> str:
    """`place` in the words of the author: names of nodes instead of their indices, and nothing for `spec`."""
    text = ""
    here: Any = obj
    for i, step in enumerate(place):
        if isinstance(step, int):
            here = here[step] if isinstance(here, Sequence) and step < len(here) else None
            name = here.get("name") if isinstance(here, Mapping) else None
            text += f".{name}" if isinstance(name, str) and _PLAIN_NAME.match(name) else f"[{step}]"
            continue
        here = here.get(step) if isinstance(here, Mapping) else None
        if not (i == 0 and step == "spec"):
            plain = step.replace("-", "_").removesuffix("?").isidentifier()
            text += f".{step}" if plain else f'["{step}"]'
    return text.removeprefix(".") or (str(place[0]) if place else "")


class _Reporter:
    def __init__(self, obj: object, locate: Locate | None) -> None:
        self._obj = obj
        self._locate = locate
        self.findings: list[Finding] = []

    def add(self, code: str, place: Place, message: str, fix: Fix | None = None) -> None:
        about_key = place[-1:] == (KEY,)
        at = (*place, KEY) if code in ("FIELD-UNKNOWN", "NOT-SUPPORTED") and not about_key else place
        place = place[:-1] if about_key else place
        file, line, column = (self._locate(at) if self._locate else None) or (None, None, None)
        path = place_text(self._obj, place)
        self.findings.append(Finding(code, path, message, file=file, line=line, column=column, fix=fix))


def _kind(obj: object, report: _Reporter) -> type[AnyResource] | None:
    if not isinstance(obj, Mapping):
        report.add("KIND", (), f"a resource is an object with apiVersion and kind, and this is {_type_name(obj)}")
        return None
    version, kind = obj.get("apiVersion"), obj.get("kind")
    if version is None and kind is None:
        remedy = f"write apiVersion: {API_VERSION} and a kind, or name only files that are manifests"
        report.add("KIND", (), f"apiVersion and kind are missing; {remedy}")
        return None
    if version != API_VERSION:
        found = quoted(version) if version is not None else "missing"
        fix = Fix(version, API_VERSION) if isinstance(version, str) else None
        report.add("KIND", ("apiVersion",), f"apiVersion is {found}; write apiVersion: {API_VERSION}", fix)
        return None
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind]
    if isinstance(kind, str) and kind in LATER_KINDS:
        report.add("NOT-SUPPORTED", ("kind",), f"kind {kind} is not built yet; {LATER_KINDS[kind]}")
        return None
    meant = did_you_mean(kind, KINDS) if isinstance(kind, str) else None
    if meant:
        message = f'there is no kind {quoted(kind)}; did you mean "{meant}"?'
        report.add("KIND", ("kind",), message, Fix(str(kind), meant))
    else:
        found = f"there is no kind {quoted(kind)}" if kind is not None else "kind is missing"
        report.add("KIND", ("kind",), f"{found}; write kind: {listed(KINDS, last='or')}")
    return None


def _too_large(obj: Mapping[str, Any], report: _Reporter) -> bool:
    spec = obj.get("spec")
    place: Place = ("spec",)
    if _deeper_than(spec, MAX_SPEC_DEPTH):
        message = f"the spec is nested deeper than {MAX_SPEC_DEPTH} levels; flatten it"
    else:
        try:
            size = len(canonical(drop_nulls(spec)))
        except TypeError as error:
            report.add("FIELD-VALUE", place, f"the spec holds what is no JSON: {error}; write it as a text")
            return True
        if size <= MAX_SPEC_BYTES:
            return False
        remedy = (
            "pass the input by inputFrom"
            if obj.get("kind") == "TaskGraphRun"
            else "split the graph or shorten its texts"
        )
        message = f"the spec has {size:,} bytes of compact JSON and may have {MAX_SPEC_BYTES:,}; {remedy}"
    report.add("SPEC-TOO-LARGE", place, message)
    return True


def _deeper_than(value: object, limit: int) -> bool:
    """Level by level, so that a hostile depth cannot exhaust the stack."""
    level: list[Any] = [value]
    for _ in range(limit):
        below: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
        if not below:
            return False
        level = below
    return True


def _explain(model: type[Resource], detail: ErrorDetails) -> tuple[str, Place, str, Fix | None]:
    """Code, place, sentence and remedy of one error of pydantic."""
    kind = detail["type"]
    place = detail["loc"]
    context = detail.get("ctx", {})
    found: object = detail["input"]
    if place[-1:] == ("[key]",):
        place = (*place[:-1], KEY)
    if kind == "extra_forbidden":
        return _unknown_field(model_at(model, place[:-1]), place)
    if kind == "missing":
        owner = model_at(model, place[:-1])
        field = field_of(owner, str(place[-1])) if owner else None
        about = f" ({(field.description or '').partition('. ')[0].removesuffix('.')})" if field else ""
        choices = literals(model, place)
        added = f"{place[-1]}: {listed(choices, last='or')}" if choices else "it"
        return "FIELD-MISSING", place[:-1], f"{place[-1]} is missing; add {added}{about}", None
    if kind == "literal_error":
        return _no_member(literals(model, place), found, place)
    if kind == "member":
        return _no_member(context["members"], found, place)
    if kind in _DUE:
        quote = UNQUOTED if kind == "string_type" and isinstance(found, bool | int | float) else ""
        quote = quote or f"; {_remedy(_DUE[kind], found, model_at(model, place))}"
        return "FIELD-TYPE", place, f"{_DUE[kind]} is due, and this is {_type_name(found)}{quote}", None
    if kind == "later":
        return "NOT-SUPPORTED", place, str(context["text"]), None
    if kind in ("expression", "schema"):
        return "FIELD-TYPE", place, str(context["text"]), None
    if kind in ("rule", "name"):
        return str(context["code"]), place, str(context["text"]), None
    return "FIELD-VALUE", place, _bound(detail), None


def _remedy(due: str, found: object, owner: type[Model] | None) -> str:
    """What to write where a value of another type stands; `owner` is the class that is due, of an object of ours."""
    if due == "a list" and isinstance(found, Mapping):
        return "write its members as items: - name: …"
    if due == "a list":
        return "write [ ] around it"
    if due == "an object" and owner is not None:
        fields = [field for field in owner.model_fields.values() if field.is_required()]
        some = fields or list(owner.model_fields.values())[:1]
        return f"write {{{', '.join(f'{field.alias}: …' for field in some)}}}"
    if due == "an object":
        return "write fields, one a line: name: value"
    if due == "a text":
        return "write one text, in double quotes"
    if due in ("an integer", "a number") and isinstance(found, str):
        return "write digits, without quotes"
    return f"write {due}"


def _bound(detail: ErrorDetails) -> str:
    """What bound or form a value breaks."""
    kind, context = detail["type"], detail.get("ctx", {})
    found: object = detail["input"]
    if kind == "string_pattern_mismatch":
        form = _FORMS.get(context["pattern"], f"what fits {context['pattern']}")
        return f"{quoted(found)} does not have the form that is due here; write {form}"
    if kind in ("too_long", "string_too_long", "too_short", "string_too_short"):
        unit = "characters" if isinstance(found, str) else "entries"
        bound = f"most {context['max_length']}" if "long" in kind else f"least {context['min_length']}"
        size = f"{len(found):,}" if isinstance(found, str | list | dict) else "another number"
        remedy = "shorten it, or split it up" if "long" in kind else "add what is missing"
        return f"at {bound} {unit} may stand here, and there are {size}; {remedy}"
    message = detail["msg"].replace("Input should be", "it must be")
    return f"{shortened(str(found), MAX_WORD)} is out of bounds: {message[:1].lower()}{message[1:]}"


def _unknown_field(owner: type[Model] | None, place: Place) -> tuple[str, Place, str, Fix | None]:
    name = str(place[-1])
    if owner is None:
        return "FIELD-UNKNOWN", place, f"there is no field {quoted(name)} here; remove it", None
    if name in owner.later:
        return "NOT-SUPPORTED", place, f"{name} is not built yet; {owner.later[name]}", None
    known = [str(field.alias) for field in owner.model_fields.values()]
    meant = here(name, known) or did_you_mean(name, known)
    if meant:
        return (
            "FIELD-UNKNOWN",
            place,
            f'there is no field {quoted(name)} here; did you mean "{meant}"?',
            Fix(name, meant),
        )
    message = f"there is no field {quoted(name)} here; remove it, or write one of {listed(sorted(known), last='or')}"
    return "FIELD-UNKNOWN", place, message, None


def _no_member(members: Sequence[str], found: object, place: Place) -> tuple[str, Place, str, Fix | None]:
    meant = did_you_mean(found, members) if isinstance(found, str) else None
    choice = f"write {listed(members, last='or')}"
    if meant:
        message = f'{quoted(found)} is not allowed here; did you mean "{meant}"? ({choice})'
        return "FIELD-VALUE", place, message, Fix(str(found), meant)
    shown = quoted(found) if isinstance(found, str) else _type_name(found)
    return "FIELD-VALUE", place, f"{shown} is not allowed here; {choice}", None


def _type_name(value: object) -> str:
    return next(
        (name for of, name in _TYPE_NAMES if isinstance(value, of)),
        "nothing" if value is None else "something else",
    )


def _unsafe_values(spec: object, report: _Reporter) -> None:
    """Numbers and texts that not every reader of JSON reads alike, wherever anything may stand."""
    for field, value in spec.items() if isinstance(spec, Mapping) else ():
        try:
            normalise(value)
        except ValueRefused as refused:
            report.add("FIELD-VALUE", ("spec", field), str(refused))


def _duplicate_names(obj: Mapping[str, Any], report: _Reporter) -> None:
    kind, spec = obj.get("kind"), obj.get("spec")
    if kind not in _NAMED or not isinstance(spec, Mapping):
        return
    scopes: list[tuple[Place, Mapping[str, Any]]] = [(("spec",), spec)]
    templates = spec.get("templates")
    if isinstance(templates, list):
        scopes += [(("spec", "templates", i), scope) for i, scope in enumerate(templates) if isinstance(scope, Mapping)]
    for base, scope in scopes:
        for field, noun in _NAMED[str(kind)]:
            for place, name in _repeated(scope.get(field), (*base, field)):
                report.add("DUPLICATE-NAME", place, f'there is already a {noun} "{name}" here; rename one of them')
    workspace = spec.get("workspace") if kind == "TaskGraph" else None
    artefacts = workspace.get("artefacts") if isinstance(workspace, Mapping) else None
    for place, name in _repeated(artefacts, ("spec", "workspace", "artefacts")):
        remedy = "rename one, or let one glob name the files of both"
        report.add("DUPLICATE-NAME", place, f'there is already an artefact "{name}" here; {remedy}')


def _repeated(items: object, base: Place) -> Iterator[tuple[Place, str]]:
    seen: set[str] = set()
    for i, item in enumerate(items if isinstance(items, list) else ()):
        name = item.get("name") if isinstance(item, Mapping) else None
        if isinstance(name, str) and name in seen:
            yield (*base, i, "name"), name
        elif isinstance(name, str):
            seen.add(name)


__all__ = ["KEY", "KINDS", "LATER_KINDS", "AnyResource", "Locate", "Place", "parse_resource", "place_text"]
