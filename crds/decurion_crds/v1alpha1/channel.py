"""Channels: values that several nodes may write, and what several writes make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from decurion_crds.compiled import MergeRule, Prefer
from decurion_crds.v1alpha1.base import (
    FREE,
    MAX_ENTRIES,
    Free,
    Identifier,
    Model,
    Rule,
    Schema,
    atomic,
)

_WITH_ORDER = ("append", "union", "mergeByKey")


class Merge(Model):
    """What several writes make. The name of a rule stands for an object with this rule alone."""

    rule: MergeRule = Field(
        description="replace keeps the last value and needs ordered writers; append joins lists; union joins lists and "
        "keeps the first of equal items; mergeByKey joins lists of objects and keeps one item for each key; sum, min "
        "and max are for numbers."
    )
    key: str | None = Field(
        None, min_length=1, max_length=63, description="Field of the items that names them; for mergeByKey."
    )
    prefer: Prefer | None = Field(
        None,
        description="Which of several items of one key is kept, for mergeByKey; error refuses items that differ. "
        "Default first.",
    )
    order: Annotated[list[Identifier], atomic(max_length=MAX_ENTRIES)] = Field(
        default_factory=list,
        description="Writers in the order of merging, for append, union and mergeByKey; those that it does not name "
        "come behind, as in the file. Default the order in the file.",
    )

    rules = (
        Rule(
            cel="self.rule != 'mergeByKey' || has(self.key)",
            message="key is missing; add the field of the items that names them, as in {rule: mergeByKey, key: id}",
            check=lambda merge: merge.rule != "mergeByKey" or merge.key is not None,
            code="FIELD-MISSING",
        ),
        Rule(
            cel="self.rule == 'mergeByKey' || !(has(self.key) || has(self.prefer))",
            message="key and prefer are for rule: mergeByKey; remove them, or write that rule",
            check=lambda merge: merge.rule == "mergeByKey" or (merge.key is None and merge.prefer is None),
        ),
        Rule(
            cel="self.rule in ['append', 'union', 'mergeByKey'] || !has(self.order)",
            message="order is for append, union and mergeByKey; remove it",
            check=lambda merge: merge.rule in _WITH_ORDER or not merge.order,
        ),
    )

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> Any:
        written = {key: value for key, value in handler(self).items() if value not in (None, [])}
        return written["rule"] if written.keys() == {"rule"} else written


def _merge(value: object) -> object:
    if isinstance(value, str):
        if value in get_args(MergeRule):
            return {"rule": value}
        raise PydanticCustomError("member", "no member", {"members": list(get_args(MergeRule))})
    if isinstance(value, dict | Merge):
        return value
    text = "a rule is due, such as append, or an object such as {rule: mergeByKey, key: id}"
    raise PydanticCustomError("rule", "{text}", {"text": text, "code": "FIELD-TYPE"})


class Channel(Model):
    """A value that several nodes may write."""

    name: Identifier = Field(description="Name, as in state.NAME.")
    schema_: Schema = Field(description="JSON Schema of the value (2020-12, see docs), or the name of a shared schema.")
    merge: Annotated[Merge, BeforeValidator(_merge), WithJsonSchema(FREE)] = Field(
        Merge(rule="replace", key=None, prefer=None),
        description="What several writes make: replace, append, union, sum, min, max, or an object {rule, key, prefer, "
        "order} with one of these rules or mergeByKey. Default replace.",
    )
    initial: Free = Field(
        None,
        description="Value before the first write. Default [] for append, union and mergeByKey, 0 for sum, absent for "
        "the others.",
    )

    later: ClassVar[Mapping[str, str]] = {
        "scope": "remove it; a channel lives as long as its run, so pass what should last as input",
        "assurance": "remove it; check the value in a node, and let that fail",
    }
