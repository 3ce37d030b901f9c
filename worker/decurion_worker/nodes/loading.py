"""`load` of a node: the names of its snapshot that come out of files."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import orjson

from decurion_crds.canonical import Json
from decurion_crds.compiled import Load
from decurion_crds.errors import DecurionError, OutputMismatch, ValueRefused
from decurion_crds.values import normalise
from decurion_worker.context import Execution
from decurion_worker.errors import SourceInvalid, SourceRefused


async def load_files(execution: Execution, env: Mapping[str, Json]) -> dict[str, Json]:
    """The values of the node's `load` by name, one file after the other.

    Raises what `Sources.read` raises, `SourceInvalid` for a file that is no text or not of its schema, and
    `ExpressionFailed`.
    """
    loads = execution.node.load
    if not loads:
        return {}
    places = await execution.context.evaluate({f"load.{name}": load.from_ for name, load in loads.items()}, env)
    return {name: await _load(execution, load, places[f"load.{name}"]) for name, load in loads.items()}


async def _load(execution: Execution, load: Load, place: Json) -> Json:
    uri, etag = _address(place)
    data = await execution.context.source(lambda sources: sources.read(uri, etag=etag, most=load.max_bytes))
    if load.as_ == "bytes":
        return base64.b64encode(data).decode()
    try:
        if load.as_ == "text":
            return data.decode("utf-8-sig")
        value = normalise(orjson.loads(data), load.schema_)
        execution.context.validator(load.schema_).check(value)
    except UnicodeDecodeError as error:
        why = f"it is no UTF-8 text (byte {error.start}); write as: bytes, or convert it"
        raise SourceRefused(uri, why) from error
    except orjson.JSONDecodeError as error:
        raise SourceInvalid(uri, None, f"it is no JSON ({error})") from error
    except (OutputMismatch, ValueRefused, DecurionError) as error:
        raise SourceInvalid(uri, None, str(error)) from error
    return value


def _address(place: Json) -> tuple[str, str]:
    """The URI of a file and what its etag must be, if anything. Raises `SourceRefused`."""
    if isinstance(place, dict):
        uri, etag = place.get("uri"), place.get("etag")
    else:
        uri, etag = place, ""
    if not isinstance(uri, str):
        raise SourceRefused(repr(place)[:100], "a file is named by its URI, or by an object with the field uri")
    return uri, etag if isinstance(etag, str) else ""
