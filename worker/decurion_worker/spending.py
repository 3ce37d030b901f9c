"""What is used: as records state it, as limits count it, and the errors of limits that are used up.

The `usage` of a record counts `calls` of models, `inputTokens`, `outputTokens`, `toolCalls`, and `nanoUSD` (10⁻⁹
dollars) where the model has a price. Limits count `tokens`, `nanoUSD`, `steps` (answers of models) and `toolCalls`.
What a provider does not report, and what a runner that was lost had not recorded, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

from decurion_crds.compiled import Limits
from decurion_worker.errors import CostLimit, LimitUsedUp, StepLimit, TokenLimit, ToolCallLimit

if TYPE_CHECKING:
    from decurion_worker.models import Usage

_PER_MILLION = 1_000
"""Nano-dollars for one token, at one dollar for a million."""
_ERRORS: Mapping[str, type[LimitUsedUp]] = {
    "tokens": TokenLimit,
    "nanoUSD": CostLimit,
    "steps": StepLimit,
    "toolCalls": ToolCallLimit,
}


def usage_of(spec: Mapping[str, Any], used: Usage) -> dict[str, int]:
    """The usage of one answer of the model whose LLM has this `spec`. A part of a nano-dollar counts as one."""
    found = {"calls": 1, "inputTokens": used.input_tokens, "outputTokens": used.output_tokens}
    price = spec.get("price")
    if price is not None:
        cost = Decimal(price["inputPerMillion"]) * used.input_tokens
        cost += Decimal(price["outputPerMillion"]) * used.output_tokens
        found["nanoUSD"] = int((cost * _PER_MILLION).to_integral_value(ROUND_CEILING))
    return found


def add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def counted(usage: Mapping[str, Any]) -> dict[str, int]:
    """A usage as limits count it."""
    return {
        "tokens": usage.get("inputTokens", 0) + usage.get("outputTokens", 0),
        "nanoUSD": usage.get("nanoUSD", 0),
        "steps": usage.get("calls", 0),
        "toolCalls": usage.get("toolCalls", 0),
    }


def above(limits: Limits, used: Mapping[str, int]) -> str | None:
    """The first limit of which more is used than it allows."""
    return next((name for name, most in limits.amounts.items() if used.get(name, 0) > most), None)


def used_up(limits: Limits, used: Mapping[str, int], names: Iterable[str]) -> str | None:
    """The first limit of these names of which nothing is left."""
    wanted = set(names)
    return next((n for n, most in limits.amounts.items() if n in wanted and used.get(n, 0) >= most), None)


def error_of(path: str, name: str, used: int, most: int) -> LimitUsedUp:
    """The error of the limit of this name, at `path`."""
    return _ERRORS[name](path, used, most)
