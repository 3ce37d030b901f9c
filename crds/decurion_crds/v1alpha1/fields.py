"""What the models say of a place: its class, its field, its allowed values."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from decurion_crds.v1alpha1.base import Model


def field_of(owner: type[Model], json_name: str) -> FieldInfo | None:
    return next((field for field in owner.model_fields.values() if field.alias == json_name), None)


def model_at(model: type[Model], place: Sequence[str | int]) -> type[Model] | None:
    """The class of the object at `place`."""
    here = _annotation_at(model, place)
    return here if isinstance(here, type) and issubclass(here, Model) else None


def literals(model: type[Model], place: Sequence[str | int]) -> list[str]:
    return [str(member) for member in get_args(_annotation_at(model, place))]


def _annotation_at(model: type[Model], place: Sequence[str | int]) -> Any:
    here: Any = model
    for step in place:
        if isinstance(here, type) and issubclass(here, Model):
            field = field_of(here, str(step))
            here = _bare(field.annotation) if field else None
        else:
            arguments = get_args(here)
            here = _bare(arguments[-1]) if arguments else None
    return here


def _bare(annotation: Any) -> Any:
    """`annotation` without `Annotated` and without `| None`."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
            continue
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1 and type(None) in get_args(annotation) and origin is not None:
            annotation = members[0]
            continue
        return annotation


def is_declared(model: type[Model], place: Sequence[str | int]) -> bool:
    """Whether the models know what stands at `place`: nothing is known of what is inside a schema or a free value."""
    above = _annotation_at(model, place[:-1])
    if above is None or get_origin(above) in (Union, types.UnionType):
        return False
    return _annotation_at(model, place) not in (None, Any)
