"""The files that a run begins with: out of a folder when its first record is written, or those of an earlier run."""

from __future__ import annotations

from functools import partial

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Store
from decurion_ledger.errors import BadTree, WorkspaceTooLarge
from decurion_ledger.layout import pack_prefix
from decurion_ledger.patience import Patience, SystemClock, patiently
from decurion_ledger.workspace import EMPTY, Entry, Limits, Objects, Upload, Version, edited
from decurion_worker.errors import SourceRefused
from decurion_worker.files import limits_of
from decurion_worker.sources import Sources


async def first_files(
    graph: CompiledGraph, input: Json, *, sources: Sources, store: Store, run: str, patience: Patience
) -> Version | None:
    """The version that a run of `graph` begins with; None where the graph names no place of files.

    Names that begin with a dot are left out, as in every listing. Raises what `Sources` raises, `SourceRefused` also
    for files that no workspace may hold.
    """
    place = graph.workspace
    if place is None or (place.uri is None and place.path is None):
        return None
    uri = place.uri if place.path is None else _at(input, place.path)
    upload = Upload(Objects(store, run, patience=patience), EMPTY)
    try:
        entries = await _read(uri, sources, upload, limits_of(graph))
        return await upload.version(await edited(upload, EMPTY.root, entries, limits=limits_of(graph)))
    except (BadTree, WorkspaceTooLarge) as error:
        raise SourceRefused(str(uri), str(error).removesuffix(".")) from error


async def _read(uri: Json, sources: Sources, upload: Upload, limits: Limits) -> dict[str, Entry | None]:
    entries: dict[str, Entry | None] = {}
    size = 0
    for one in await sources.list(uri, most=limits.files + 1, closed=True):
        size += one.size
        if size > limits.bytes:
            raise WorkspaceTooLarge("bytes", size, limits.bytes)
        content = await sources.read(one.uri, etag=one.etag)
        entries[one.key] = Entry("file", len(content), await upload.add_file(content))
    return entries


def _at(input: Json, path: tuple[str, ...]) -> Json:
    value = input
    for name in path[1:]:
        value = value.get(name) if isinstance(value, dict) else None
    return value


async def take_packs(store: Store, earlier: str, run: str, *, patience: Patience) -> None:
    """Bring what an earlier run keeps of files over into a new one, which then depends on it no more."""
    source, target, clock = pack_prefix(earlier), pack_prefix(run), SystemClock()
    async for info in store.list(source):
        raw = await patiently(partial(store.get, info.key), patience=patience, clock=clock)
        key = target + info.key[len(source) :]
        await patiently(partial(store.put_new, key, raw), patience=patience, clock=clock)
