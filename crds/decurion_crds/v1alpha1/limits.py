"""How much may be used: of a run, of each run of a template, of a node, of an agent. Prices are what costs follow from.

Amounts are integers or texts, as quantities of Kubernetes are: `100000` and `"100k"` tokens, `5` and `"0.25"` dollars.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from decurion_crds.v1alpha1.base import Model

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_COUNT = re.compile(r"([1-9][0-9]{0,11})([kMG]?)")
_MONEY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
COUNT_PATTERN = r"^[1-9][0-9]{0,11}[kMG]?$"
MONEY_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,9})?$"
MAX_COUNT = 10**12
NANO = 10**9
"""Nano-dollars in a dollar: the unit in which costs are counted."""


def _count(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT:
        return value
    found = _COUNT.fullmatch(value) if isinstance(value, str) else None
    if found is not None and (amount := int(found[1]) * _UNITS[found[2]]) <= MAX_COUNT:
        return amount
    text = f'an integer from 1 to {MAX_COUNT:,} is due, or a text such as "100k" or "2M"'
    raise PydanticCustomError("rule", "{text}", {"text": text, "code": "FIELD-VALUE"})


def _money(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and _MONEY.fullmatch(text):
        return text
    if isinstance(value, str | int) and not isinstance(value, bool):
        told = (
            'an amount of dollars has at most nine digits before the point and nine after it, and no sign; write "0.25"'
        )
    else:
        written = f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) and 0 < value < NANO else "0.25"
        told = f'an amount of dollars is an integer or a text: write "{written}", with the quotes'
    raise PydanticCustomError("rule", "{text}", {"text": told, "code": "FIELD-VALUE"})


def _some_money(value: object) -> object:
    text = _money(value)
    if isinstance(text, str) and not Decimal(text):
        told = "nothing can be done for no money; write an amount above 0"
        raise PydanticCustomError("rule", "{text}", {"text": told, "code": "FIELD-VALUE"})
    return text


_INT_OR_TEXT = {"x-kubernetes-int-or-string": True, "maxLength": 20}
Count = Annotated[int, BeforeValidator(_count), WithJsonSchema({**_INT_OR_TEXT, "pattern": COUNT_PATTERN})]
"""A number of things from 1 on: an integer, or a text with k, M or G behind it."""
Money = Annotated[str, BeforeValidator(_some_money), WithJsonSchema({**_INT_OR_TEXT, "pattern": MONEY_PATTERN})]
"""Dollars above 0: an integer, or a text with up to nine decimals."""
Rate = Annotated[str, BeforeValidator(_money), WithJsonSchema({**_INT_OR_TEXT, "pattern": MONEY_PATTERN})]
"""Dollars, 0 included."""


def nano(money: str) -> int:
    """Dollars in nano-dollars."""
    return int(Decimal(money) * NANO)


def dollars(nano: int) -> str:
    """Nano-dollars as dollars: `0.00215`."""
    return f"{(Decimal(nano) / NANO).normalize():f}"


class Limits(Model):
    """How much may be used, by nodes and by all that they run. Those of finally are not counted."""

    tokens: Count | None = Field(
        None, description="Most tokens, sent to models and received from them. Absent, there is no limit."
    )
    cost_usd: Money | None = Field(
        None,
        alias="costUSD",
        description="Most dollars, by the price of each LLM that is asked; each of them needs one. Absent, there is no "
        "limit.",
    )
    steps: Count | None = Field(
        None,
        description="Most answers of models: turns of agents and calls of llm nodes. Absent, there is no limit.",
    )
    tool_calls: Count | None = Field(
        None, description="Most calls of tools, by tool nodes and agents. Absent, there is no limit."
    )
    seconds: float | None = Field(
        None,
        gt=0,
        le=31_536_000,
        description="Longest time, from the start to the end of the nodes. Absent, there is no limit.",
    )


class AgentLimits(Model):
    """How much an agent may do. When one is used up, one more turn is given to finish."""

    steps: int | None = Field(None, ge=1, le=1_000, description="Most turns. Default 50.")
    tokens: Count | None = Field(
        None, description="Most tokens, sent to the model and received from it. Absent, there is no limit."
    )
    cost_usd: Money | None = Field(
        None,
        alias="costUSD",
        description="Most dollars, by the price of the LLM, which needs one. Absent, there is no limit.",
    )
    tool_calls: Count | None = Field(None, description="Most calls of tools. Absent, there is no limit.")
    seconds: float | None = Field(
        None,
        gt=0,
        le=31_536_000,
        description="Seconds after which no turn begins, counted anew by a runner that takes the agent over. Absent, "
        "there is no limit.",
    )


class Price(Model):
    """What an LLM costs, in dollars for a million tokens."""

    input_per_million: Rate = Field(description="For a million tokens that it is sent.")
    output_per_million: Rate = Field(description="For a million tokens that it answers.")
