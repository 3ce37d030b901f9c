"""Compiled graphs, stored by digest before a run that names one is opened."""

from __future__ import annotations

import orjson
from pydantic import ValidationError

from decurion_crds.canonical import Json, canonical
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Store
from decurion_ledger.errors import NotFound
from decurion_worker.errors import BundleInvalid, BundleMissing


def _key(digest: str) -> str:
    return f"bundles/{digest[:2]}/{digest}"


def parse_bundle(digest: str, body: Json) -> CompiledGraph:
    """The graph in `body`. Raises `BundleInvalid` when it is none, or is not the one that `digest` names."""
    try:
        graph = CompiledGraph.model_validate(body)
    except ValidationError as error:
        raise BundleInvalid(
            digest, f"it is no compiled graph of this version ({error.error_count()} faults)"
        ) from error
    if graph.digest != digest:
        raise BundleInvalid(digest, f"its content has the digest {graph.digest}")
    return graph


async def put_bundle(store: Store, graph: CompiledGraph) -> None:
    """Store a graph under its digest; a second time is no error."""
    await store.put_new(_key(graph.digest), canonical(graph.to_json()))


async def get_bundle(store: Store, digest: str) -> CompiledGraph:
    """The stored graph of this digest. Raises `BundleMissing`."""
    try:
        body = await store.get(_key(digest))
    except NotFound:
        raise BundleMissing(digest) from None
    return parse_bundle(digest, orjson.loads(body))
