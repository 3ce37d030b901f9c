"""What opens and closes an expression inside a text."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from decurion_crds.v1alpha1.base import atomic

DELIMITER = r"^[!#-&(-/:-@\[\]-_{-~]{2,4}$"
"""Two to four signs, none of which a string or a name may hold at its ends: no letter, digit, quote or backslash."""


def _differ(signs: list[str]) -> list[str]:
    if signs[0] == signs[1]:
        text = 'what opens an expression differs from what closes it; write two, as in ["<<", ">>"]'
        raise PydanticCustomError("rule", "{text}", {"text": text, "code": "FIELD-VALUE"})
    return signs


Delimiters = Annotated[
    list[Annotated[str, Field(pattern=DELIMITER, max_length=4)]],
    atomic(min_length=2, max_length=2),
    AfterValidator(_differ),
]
