"""How a graph uses another one: by `ref`, with `bind` for what that one says it `needs`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from decurion_crds.v1alpha1.base import MAX_ENTRIES, ResourceKey, ResourceName, Rule, one_of

NeedKind: TypeAlias = Literal["LLM", "MCPServer"]
"""Kinds of resources that a graph may let others swap."""
Needs = Annotated[dict[ResourceKey, NeedKind], Field(max_length=MAX_ENTRIES)]
Bindings = Annotated[dict[ResourceKey, ResourceName], Field(max_length=MAX_ENTRIES)]

BIND_TEXT = "With ref: what the other graph uses for its needs: name in its needs → name of a resource here."
_BIND_WITHOUT_REF = "bind goes with ref: a template shares the names of its graph; remove bind, or use another graph"
BODY_TEXT = "A template in place, in files alone: what is applied has a template, which decurion graph fmt writes."
_BODY = (
    "body is a form of files and stands alone there; on a cluster write template, as decurion graph fmt prints it, and "
    "remove body"
)
RUNS_A_GRAPH = (
    Rule(cel="!has(self.body)", message=_BODY, check=lambda block: block.body is None),
    one_of("template", "ref"),
    Rule(
        cel="!has(self.bind) || has(self.ref)",
        message=_BIND_WITHOUT_REF,
        check=lambda block: not block.bind or block.ref is not None,
    ),
)
"""Rules of the blocks that run a scope."""
