"""The reference of all kinds: pages below `docs/reference`, made from the models.

    python hack/reference.py            write the pages
    python hack/reference.py --check    write nothing; fail when a page differs from the models

One page for each kind, one for the objects that several kinds share. `docs/reference/index.md` is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from decurion_crds.v1alpha1 import KINDS, Model, ObjectMeta, Resource, base

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
BY_HAND = "index.md"
SHARED = "shared.md"

_WORDS: tuple[tuple[Any, str], ...] = (
    (base.Expression, "expression"),
    (base.Schema, "schema"),
    (base.Identifier, "name"),
    (base.Key, "name"),
    (base.ResourceName, "resource name"),
    (base.ResourceKey, "resource name"),
    (base.SchemaName, "schema name"),
    (base.FieldName, "field name"),
    (base.ResultName, "field name"),
    (base.FreeObject, "object"),
    (dict[str, Any], "object"),
    (bool, "true or false"),
    (int, "integer"),
    (float, "number"),
    (str, "text"),
    (Any, "any value"),
)
_IMPLIED = frozenset({base.IDENTIFIER, base.RESOURCE_NAME})
"""Patterns that the word for the type says already."""
_DEFAULT = re.compile(r" ?Default (.+?)\.(?= |$)")
_MADE = "Made from the models by `python hack/reference.py`. What the words for types mean is in the [index](index.md)."


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `sections` are its objects in order, each with the places of a manifest where it stands."""

    file: str
    head: str
    sections: tuple[tuple[type[Model], tuple[str, ...]], ...]


def pages() -> dict[str, str]:
    """Name of a file → its text."""
    places = {kind: places_of(model) for kind, model in KINDS.items()}
    counts = [model for found in places.values() for model in found]
    shared = {model for model in counts if counts.count(model) > 1} | {ObjectMeta}
    made = [
        Page(
            file=_file(kind),
            head=_head(model),
            sections=tuple((one, at) for one, at in places[kind].items() if one not in shared),
        )
        for kind, model in sorted(KINDS.items())
    ]
    everywhere: dict[type[Model], tuple[str, ...]] = {ObjectMeta: ("`metadata` of every kind",)}
    for kind, found in sorted(places.items()):
        for model, at in found.items():
            if model in shared:
                more = tuple(f"{place} of [{kind}]({_file(kind)})" for place in at)
                everywhere[model] = (*everywhere.get(model, ()), *more)
    made.append(Page(file=SHARED, head="# Shared objects\n\n" + _MADE, sections=tuple(everywhere.items())))
    homes = {model: page.file for page in made for model, _ in page.sections}
    return {page.file: _text(page, homes) for page in made}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the reference of all kinds.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page differs from the models")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="where the pages are")
    options = parser.parse_args(arguments)
    due = pages()
    present = {file.name: file.read_text(encoding="utf-8") for file in sorted(options.folder.glob("*.md"))}
    present.pop(BY_HAND, None)
    differ = sorted(name for name in due.keys() | present.keys() if due.get(name) != present.get(name))
    for name in differ:
        path = options.folder / name
        if options.check:
            sys.stderr.write(f"{path} differs from the models; run python hack/reference.py\n")
        elif name in due:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(due[name], encoding="utf-8")
        else:
            path.unlink()
    return 1 if differ and options.check else 0


def _file(kind: str) -> str:
    return f"{kind.lower()}.md"


def places_of(kind: type[Resource]) -> dict[type[Model], tuple[str, ...]]:
    """The objects in `spec` and `status` of a kind, in the order of a reader, each with where it stands."""
    found: dict[type[Model], tuple[str, ...]] = {}

    def visit(hint: Any, place: str, above: tuple[type[Model], ...]) -> None:
        for model, here in models_of(hint, place):
            if model not in above:
                found[model] = (*found.get(model, ()), f"`{here}`")
                for _, alias, below in fields_of(model):
                    visit(below, f"{here}.{alias}", (*above, model))

    for _, alias, hint in fields_of(kind):
        if alias in ("spec", "status"):
            visit(hint, alias, ())
    return found


def models_of(hint: Any, place: str) -> Iterator[tuple[type[Model], str]]:
    """The models in an annotation. `[]` stands for an item of a list, `{}` for a value of a map."""
    if isinstance(hint, type) and issubclass(hint, Model):
        yield hint, place
    elif (origin := get_origin(hint)) is list:
        yield from models_of(get_args(hint)[0], f"{place}[]")
    elif origin is dict:
        yield from models_of(get_args(hint)[1], f"{place}{{}}")
    elif origin is Annotated:
        yield from models_of(get_args(hint)[0], place)
    elif origin in (Union, types.UnionType):
        for member in get_args(hint):
            yield from models_of(member, place)


def fields_of(model: type[Model]) -> Iterator[tuple[str, str, Any]]:
    """Attribute, name in JSON and annotation of each field."""
    hints = get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        yield name, field.alias or name, hints[name]


def _head(model: type[Resource]) -> str:
    columns = [name for name, _ in (*model.columns, *model.wide_columns)]
    return "\n".join(
        [
            f"# {model.__name__}",
            "",
            _prose(model.__doc__),
            "",
            f"`apiVersion: {base.API_VERSION}`, `kind: {model.__name__}`, "
            "`metadata` as [everywhere](shared.md#objectmeta). "
            f"kubectl knows it as `{model.plural}` and `{model.short_name}`, in the category `{model.category}`; "
            f"`kubectl get -o wide` shows {', '.join(columns)} and Age.",
            "",
            _MADE,
        ]
    )


def _text(page: Page, homes: Mapping[type[Model], str]) -> str:
    return "\n\n".join([page.head, *(_section(page, model, at, homes) for model, at in page.sections)]) + "\n"


def _section(page: Page, model: type[Model], places: Sequence[str], homes: Mapping[type[Model], str]) -> str:
    parts = [f"## {model.__name__}", _prose(model.__doc__), f"Stands at {', '.join(places)}."]
    schema = model.model_json_schema(by_alias=True)
    schema = schema | schema.get("$defs", {}).get(model.__name__, {})
    rows = ["| field | type | default | bounds | meaning |", "| --- | --- | --- | --- | --- |"]
    for name, alias, hint in fields_of(model):
        field = model.model_fields[name]
        meaning, default = _default(field.description or "", field)
        cells = [
            f"`{alias}`",
            _type(hint, page.file, homes),
            default,
            _bounds(schema["properties"][alias]),
            _prose(meaning),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    parts.append("\n".join(rows))
    if model.rules:
        parts.append("\n".join(["Rules:", "", *(f"* {_prose(rule.message)}." for rule in model.rules)]))
    if model.later:
        later = [f"* `{name}`: {_prose(instead)}." for name, instead in model.later.items()]
        parts.append("\n".join(["Refused as not supported yet, with what to do instead:", "", *later]))
    return "\n\n".join(parts)


def _default(description: str, field: Any) -> tuple[str, str]:
    """The description without what it says of the default, and that."""
    if field.is_required():
        return description, "required"
    if found := _DEFAULT.search(description):
        return _DEFAULT.sub("", description, count=1).strip(), _prose(found[1])
    value = field.default_factory() if field.default_factory else field.default
    empty = value is None or value in ("", [], {})
    return description, "" if empty else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(hint: Any, file: str, homes: Mapping[type[Model], str]) -> str:
    for known, word in _WORDS:
        if hint == known:
            return word
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin is Annotated:
            return _type(arguments[0], file, homes)
        case origin if origin is Literal:
            return ", ".join(f"`{member}`" for member in arguments)
        case origin if origin in (Union, types.UnionType):
            members = [member for member in arguments if member is not types.NoneType]
            return " or ".join(_type(member, file, homes) for member in members)
        case origin if origin is list:
            return f"list of {_type(arguments[0], file, homes)}"
        case origin if origin is dict:
            return f"{_type(arguments[0], file, homes)} → {_type(arguments[1], file, homes)}"
    home = homes[hint]
    return f"[{hint.__name__}]({'' if home == file else home}#{hint.__name__.lower()})"


def _bounds(schema: Mapping[str, Any]) -> str:
    """What a JSON Schema says beyond the type."""
    if members := [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]:
        schema = members[0] | {key: value for key, value in schema.items() if key != "anyOf"}
    found = []
    if keys := schema.get("x-kubernetes-list-map-keys"):
        found.append(f"unique `{keys[0]}`")
    if "exclusiveMinimum" in schema:
        found.append(f"above {_number(schema['exclusiveMinimum'])}")
    implied = schema.get("pattern") in _IMPLIED or schema.get("x-kubernetes-int-or-string")
    for least, most, unit in (
        ("minimum", "maximum", ""),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " entries"),
        ("minLength", "maxLength", " characters"),
    ):
        if unit != " characters" or not implied:
            found += _range(schema.get(least), schema.get(most), unit)
    if schema.get("format") == "date-time":
        found = ["a time, RFC 3339"]
    if "pattern" in schema and not implied:
        found.append(f"`{schema['pattern']}`".replace("|", r"\|"))
    return ", ".join(found)


def _range(least: float | None, most: float | None, unit: str) -> Iterator[str]:
    if least is not None and most is not None:
        yield f"{_number(least)} to {_number(most)}{unit}"
    elif most is not None:
        yield f"at most {_number(most)}{unit}"
    elif least is not None:
        yield f"at least {_number(least)}{unit}"


def _number(value: float) -> str:
    return f"{value:,g}" if abs(value) < 1e6 else f"{value:,.0f}"


def _prose(text: str | None) -> str:
    """A sentence of a model as text of Markdown."""
    return re.sub(r"([|<>*_])", r"\\\1", " ".join((text or "").split()))


if __name__ == "__main__":
    sys.exit(main())
