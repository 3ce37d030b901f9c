"""What a model sees beside its prompt: drawers, all of them shut unless they are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from decurion_crds.v1alpha1.base import MAX_ENTRIES, Identifier, Model, atomic
from decurion_crds.v1alpha1.workspace import Glob

MAX_HISTORY = 50


class ContextHistory(Model):
    """What a node said in earlier rounds of the loop that runs it."""

    last: int = Field(
        ge=0, le=MAX_HISTORY, description="Most rounds, the latest: of each the prompt and the answer. 0 for none."
    )


class Context(Model):
    """What a model sees beside its prompt. A drawer that a node leaves out is that of its Agent, then of its graph."""

    ledger: Annotated[list[Identifier], atomic(max_length=MAX_ENTRIES)] | None = Field(
        None, description="Channels whose values stand before the prompt. An empty list for none."
    )
    history: ContextHistory | None = Field(
        None, description="What the node said in earlier rounds, as messages before the prompt."
    )
    artefacts: Annotated[list[Glob], atomic(max_length=16)] | None = Field(
        None,
        description="Files of the run whose texts stand before the prompt: * and ? stand for characters of one name, "
        "** for folders. An empty list for none.",
    )

    later: ClassVar[Mapping[str, str]] = {
        "interpreter": "write what code has to know into a channel, or into the node's with",
    }
