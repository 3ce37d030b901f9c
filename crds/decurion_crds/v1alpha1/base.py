"""What every resource model is made of: the base class, metadata, conditions, names, expressions, rules.

A model is the one source of the field list: the CRD (`structural.py`), the parser (`parse.py`) and the documentation
read it from here.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError

from decurion_crds.findings import listed, quoted

GROUP = "decurion.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

MAX_NODES = 128
MAX_FINALS = 16
MAX_TEMPLATES = 32
MAX_CHANNELS = 64
MAX_ENTRIES = 32
MAX_EXPRESSION = 4 * 1024
MAX_TEXT = 32 * 1024
MAX_DESCRIPTION = 1024
MAX_SPEC_BYTES = 96 * 1024
"""Bound of a `spec`, as compact JSON."""
MAX_SPEC_DEPTH = 64

MAX_IDENTIFIER = 63
IDENTIFIER = r"^[a-z][a-zA-Z0-9_]{0,62}$"
"""Names of nodes, channels, templates, and of `with` and `as`: they occur in expressions."""
RESERVED = frozenset({"input", "nodes", "state", "run", "output", "iteration", "index", "raw"})
"""Names that expressions give a meaning of their own."""
YAML_WORDS = frozenset({"true", "false", "null"})
"""Keys that YAML makes of other words, such as y, n and on: nobody means these as names."""
RESOURCE_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""Names of resources: DNS labels. They never occur in expressions."""
SCHEMA_NAME = r"^[A-Za-z][a-zA-Z0-9_]{0,62}$"
"""Names of shared schemas; the names of JSON types are not among them."""
JSON_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

_IDENTIFIER = re.compile(IDENTIFIER)
_RESOURCE_NAME = re.compile(RESOURCE_NAME)
_SCHEMA_NAME = re.compile(SCHEMA_NAME)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over several fields of one object, in the two languages that apply it.

    `cel` goes into the CRD. `check` takes the model and says whether it holds; it is None for rules about a change
    (`oldSelf`), which only the API server can see. `field` is the JSON path that the API server puts into its message.
    `explain` says more of a model that breaks the rule than `message`, which has to do for all.
    """

    cel: str
    message: str
    check: Callable[[Any], bool] | None
    code: str = "FIELD-VALUE"
    field: str | None = None
    explain: Callable[[Any], str] | None = None


def one_of(*fields: str, required: bool = True) -> Rule:
    """Exactly one (or, when not `required`, at most one) of the fields, given by their names in JSON, is set."""
    count = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in fields)
    names = ", ".join(fields)
    attributes = [python_name(name) for name in fields]

    def check(model: object) -> bool:
        found = sum(getattr(model, name) is not None for name in attributes)
        return found == 1 or (found == 0 and not required)

    def explain(model: object) -> str:
        found = [
            name for name, attribute in zip(fields, attributes, strict=True) if getattr(model, attribute) is not None
        ]
        if found:
            return f"{listed(found)} are set, and only one of them may be; remove the other{'s' * (len(found) > 2)}"
        return f"exactly one of {listed(fields)} must be set, and none is; add one"

    return Rule(
        cel=f"{count} {'==' if required else '<='} 1",
        message=f"{'exactly' if required else 'at most'} one of {names} must be set",
        check=check,
        code="ONE-OF",
        explain=explain,
    )


def python_name(json_name: str) -> str:
    """The attribute that holds the field `json_name`: `timeoutSeconds` → `timeout_seconds`, `with` → `with_`."""
    name = re.sub(r"(?<=[a-z0-9])([A-Z]+)", lambda match: "_" + match.group(1).lower(), json_name)
    return name + "_" if keyword.iskeyword(name) or name == "schema" else name


def _json_name(attribute: str) -> str:
    return to_camel(attribute.rstrip("_"))


class Model(BaseModel):
    """Base of every object of the API: frozen, strict, no unknown fields, camelCase in JSON.

    `rules` are applied here and by the API server. `later` names fields of the language that are not built yet, with
    the sentence that says what to use meanwhile. `kubernetes` holds extensions for the CRD (`x-kubernetes-map-type`).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=_json_name,
        validate_by_alias=True,
        validate_by_name=True,
        allow_inf_nan=False,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    later: ClassVar[Mapping[str, str]] = {}
    kubernetes: ClassVar[Mapping[str, Any]] = {}

    def to_json(self) -> dict[str, Any]:
        """The object as in its manifest. What equals its default is left out, so that `absent` and `default` are
        one.
        """
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)

    @model_validator(mode="after")
    def _apply_rules(self) -> Self:
        for rule in self.rules:
            if rule.check is not None and not rule.check(self):
                text = rule.explain(self) if rule.explain else rule.message
                raise PydanticCustomError("rule", "{text}", {"text": text, "code": rule.code})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON Schema of the model, with its rules and extensions, as the CRD generator needs them."""
        schema = handler.resolve_ref_schema(handler(core))
        schema.update(cls.kubernetes)
        if cls.rules:
            schema["x-kubernetes-validations"] = [
                {"rule": rule.cel, "message": rule.message} | ({"fieldPath": rule.field} if rule.field else {})
                for rule in cls.rules
            ]
        return schema


def _identifier(name: str) -> str:
    if not _IDENTIFIER.fullmatch(name):
        why = "a name here starts with a small letter and has at most 63 letters, digits and _"
        raise _bad_name(name, why, _suggested(name, re.compile(r"[^a-zA-Z0-9_]+"), "_", _IDENTIFIER))
    _no_yaml_word(name)
    if keyword.iskeyword(name) or name in RESERVED:
        why = "a word of Python" if keyword.iskeyword(name) else "a word that expressions use"
        raise _bad_name(name, f"it is {why}; choose another, such as {name}Value")
    return name


def _no_yaml_word(name: str) -> str:
    if name.removesuffix("?") in YAML_WORDS:
        why = "YAML makes it of words such as y, n, on and off; put the word into double quotes, or choose another"
        raise _bad_name(name, why)
    return name


def _resource_name(name: str) -> str:
    if not _RESOURCE_NAME.fullmatch(name) or len(name) > 63:
        why = "a resource name has at most 63 small letters, digits and -, and starts and ends with a letter or digit"
        raise _bad_name(name, why, _suggested(name.lower(), re.compile(r"[^a-z0-9]+"), "-", _RESOURCE_NAME))
    return name


def _schema_name(name: str) -> str:
    if not _SCHEMA_NAME.fullmatch(name):
        raise _bad_name(name, "the name of a shared schema starts with a letter, then letters, digits and _")
    if name in JSON_TYPES:
        raise _bad_name(name, "it is the name of a type; choose another name, such as one with a capital letter")
    return name


def _field_name(name: str) -> str:
    if not name.removesuffix("?") or len(name) > 64:
        raise _bad_name(name, "a field has a name of 1 to 63 characters, and a ? behind it when it is optional")
    return _no_yaml_word(name)


def _bad_name(name: str, why: str, instead: str = "") -> PydanticCustomError:
    remedy = f"; write {instead}" if instead else "" if ";" in why else "; choose another name"
    return PydanticCustomError("name", "{text}", {"text": f"{quoted(name)} is no name: {why}{remedy}", "code": "NAME"})


def _suggested(name: str, refused: re.Pattern[str], instead: str, rule: re.Pattern[str]) -> str:
    """`name` in a form that `rule` allows, where one is at hand."""
    if not name.isascii() or len(name) > 63:
        return ""
    found = refused.sub(instead, name).strip(instead)
    found = found[:1].lower() + found[1:]
    return found if rule.fullmatch(found) else ""


def _expression(value: object) -> object:
    """An integer of a manifest is an expression too; objects and lists are expressions that YAML took apart.

    Other numbers and booleans are refused: rules of the API server cannot see fields that allow them.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, bool | float):
        found = f'an expression is a text: write "{value!r}", with the quotes'
    elif isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        found = f"an expression is due and YAML reads this as {kind}: put the expression into double quotes"
    else:
        return value
    raise PydanticCustomError("expression", "{text}", {"text": found})


def _schema_place(value: object) -> object:
    if isinstance(value, str | dict):
        return value
    raise PydanticCustomError("schema", "{text}", {"text": "a JSON Schema, or the name of a shared one, is due here"})


def _shown(**schema: Any) -> Any:
    """What the CRD says of a value that a validator of ours checks."""
    return Field(json_schema_extra=schema)


FREE: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
FREE_OBJECT: dict[str, Any] = {"type": "object", **FREE, "x-kubernetes-map-type": "atomic"}

Identifier = Annotated[str, AfterValidator(_identifier), _shown(pattern=IDENTIFIER, maxLength=63)]
ResourceName = Annotated[str, AfterValidator(_resource_name), _shown(pattern=RESOURCE_NAME, maxLength=63)]
SchemaName = Annotated[str, AfterValidator(_schema_name)]
FieldName = Annotated[str, AfterValidator(_field_name)]
Key = Annotated[str, AfterValidator(_identifier)]
ResourceKey = Annotated[str, AfterValidator(_resource_name)]
ResultName = Annotated[str, AfterValidator(_no_yaml_word)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Expression = Annotated[
    str,
    BeforeValidator(_expression),
    Field(max_length=MAX_EXPRESSION),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": MAX_EXPRESSION}),
]
"""Source of an expression. An integer in the manifest is one too."""
Schema = Annotated[str | dict[str, Any], BeforeValidator(_schema_place), WithJsonSchema(FREE)]
"""A JSON Schema (2020-12), or the name of a shared one; see `decurion_crds.schemas.expand_schema`."""
Free = Annotated[Any, WithJsonSchema(FREE)]
"""Any JSON value."""
FreeObject = Annotated[dict[str, Any], WithJsonSchema(FREE_OBJECT)]
"""Any JSON object, owned whole by one field manager."""

Expressions = Annotated[dict[Key, Expression], Field(max_length=MAX_ENTRIES)]
"""Name → expression, where the name occurs in expressions."""
Fields = Annotated[dict[ResultName, Expression], Field(max_length=MAX_ENTRIES)]
"""Name of a result field → expression, or `$value` → the one expression of a result that is no object."""


def atomic(**extra: Any) -> Any:
    """A list that field managers own whole."""
    return Field(json_schema_extra={"x-kubernetes-list-type": "atomic"}, **extra)


def named(key: str = "name", **extra: Any) -> Any:
    """A list whose items differ in `key`; the API server refuses two of one name."""
    return Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}, **extra)


class ObjectMeta(Model):
    """The metadata that every Kubernetes object has. Only names, labels and annotations are ours to read."""

    name: ResourceName | None = Field(None, description="Name of the resource, unique for its kind in the namespace.")
    generate_name: str | None = Field(None, description="Prefix of a name that the API server completes.")
    namespace: ResourceName | None = Field(None, description="Namespace of the resource.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")
    uid: str | None = Field(None, description="Identity, given by the API server.")
    generation: int | None = Field(None, description="Count of changes of the spec, kept by the API server.")
    resource_version: str | None = Field(None, description="Version of the object, kept by the API server.")
    creation_timestamp: str | None = Field(None, description="Time of creation.")
    deletion_timestamp: str | None = Field(None, description="Time at which deletion was asked for.")
    deletion_grace_period_seconds: int | None = Field(None, description="Seconds left for a graceful deletion.")
    finalizers: list[str] = Field(default_factory=list, description="Finalizers.")
    owner_references: list[dict[str, Any]] = Field(default_factory=list, description="Owners.")
    managed_fields: list[dict[str, Any]] = Field(default_factory=list, description="Field managers.")
    self_link: str | None = Field(None, description="Deprecated by Kubernetes, ignored.")

    rules = (
        Rule(
            cel="has(self.name) || has(self.generateName)",
            message="metadata.name is missing; give the resource a name",
            check=lambda meta: bool(meta.name or meta.generate_name),
            code="FIELD-MISSING",
        ),
    )


class SecretKeyRef(Model):
    """One entry of a Secret of the same namespace."""

    name: ResourceName = Field(description="Name of the Secret.")
    key: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]+$",
        description="Key of the entry in the Secret.",
    )


class Auth(Model):
    """Where the bearer token is."""

    secret_key_ref: SecretKeyRef = Field(
        description="The Secret entry whose value is sent as bearer token; it never enters the ledger or a status."
    )


class Condition(Model):
    """One condition in the form of Kubernetes."""

    type: str = Field(max_length=316, description="Name of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(max_length=1024, description="CamelCase word for the cause; never empty.")
    message: str = Field("", max_length=MAX_TEXT, description="The same for people.")
    last_transition_time: str = Field(
        max_length=64,
        json_schema_extra={"format": "date-time"},
        description="Time at which the status last changed.",
    )
    observed_generation: int | None = Field(
        None, description="Generation of the spec that the condition was made from."
    )


Conditions = Annotated[list[Condition], named("type", max_length=16)]


class Resource(Model):
    """A resource as a whole: what stands in one document of a manifest.

    `names` holds what `kubectl` calls the kind; `columns` and `selectable` are (name, JSON path) pairs of the CRD.
    """

    api_version: Literal["decurion.dev/v1alpha1"] = Field(description="Version of the API.")
    kind: str = Field(description="Kind of the resource.")
    metadata: ObjectMeta = Field(description="The name of the resource, as in {name: earnings}.")

    plural: ClassVar[str]
    short_name: ClassVar[str]
    category: ClassVar[str] = "decurion"
    columns: ClassVar[tuple[tuple[str, str], ...]] = ()
    wide_columns: ClassVar[tuple[tuple[str, str], ...]] = ()
    selectable: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        return self.metadata.name or self.metadata.generate_name or ""
