"""Expressions, texts and code: parsed (`syntax`, `text`, `code`), type-checked (`check`), evaluated (`evaluate`)."""

from decurion_crds.expressions.code import ParsedCode, parse_code
from decurion_crds.expressions.errors import ExpressionFailed, ExpressionRefused, Problem
from decurion_crds.expressions.evaluate import Evaluator
from decurion_crds.expressions.syntax import Parsed, parse_expression
from decurion_crds.expressions.text import ParsedText, parse_text

__all__ = [
    "Evaluator",
    "ExpressionFailed",
    "ExpressionRefused",
    "Parsed",
    "ParsedCode",
    "ParsedText",
    "Problem",
    "parse_code",
    "parse_expression",
    "parse_text",
]
