"""Node kind `approval`: what people are asked. A runner renders it; the answer comes to the driver, much later."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_crds.compiled import ApprovalBlock
from decurion_worker.context import Execution


async def ask(execution: Execution, block: ApprovalBlock, snapshot: Mapping[str, Json]) -> dict[str, Json]:
    """What is shown: `{message}`, and `form`, the schema of what is to be filled in. Its hash names it.

    Raises `ExpressionFailed` when an expression of the message does.
    """
    shown: dict[str, Json] = {"message": await execution.context.render(block.message, snapshot)}
    if block.form is not None:
        shown["form"] = block.form
    return shown


def nonce() -> str:
    """The name of one request: nobody can guess it."""
    return secrets.token_hex(16)
