"""What a graph reads out of files and objects: `itemsFrom` of a map and `load` of a node."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from decurion_crds.v1alpha1.base import MAX_ENTRIES, Expression, Key, Model, Rule, Schema, one_of

MAX_GLOB = 256
MAX_LOAD = 32 * 1024 * 1024
"""The most bytes that `load` reads of one file."""
LOAD_BYTES = 1024 * 1024
"""The most bytes that `load` reads where nothing is written."""


def _glob_alone(source: Any) -> bool:
    return source.glob is None or source.prefix is not None


class ItemsFrom(Model):
    """Items that come from a file or a folder instead of the graph's data. One of jsonl and prefix."""

    jsonl: Expression | None = Field(
        None, description="Python expression for the URI of a file with one JSON value a line, such as s3://bucket/key."
    )
    schema_: Schema | None = Field(
        None,
        description="JSON Schema of one line (2020-12, see docs), or the name of a shared schema. Required with jsonl; "
        "the items of prefix have a schema of their own.",
    )
    prefix: Expression | None = Field(
        None,
        description="Python expression for the URI of a folder, such as s3://bucket/reports. Its items are the files "
        "below it: {key, uri, size, etag}, sorted by key, which is the part of the name behind the prefix.",
    )
    glob: Annotated[str, Field(min_length=1, max_length=MAX_GLOB, pattern="^[^/]")] | None = Field(
        None,
        description="Which files, by key: * and ? stand for characters of one name, [abc] for one of these, ** for "
        "folders. Absent, all of them.",
    )

    rules = (
        one_of("jsonl", "prefix"),
        Rule(
            cel="!has(self.glob) || has(self.prefix)",
            message="glob chooses among the files of a folder; write prefix, or remove glob",
            check=_glob_alone,
        ),
    )


class Load(Model):
    """A value that is read out of a file when the node runs."""

    from_: Expression = Field(
        description="Python expression over input, state, run and nodes for the URI of the file, or for an item of "
        "itemsFrom.prefix, which must not have changed since it was listed."
    )
    as_: Literal["text", "json", "bytes"] = Field(
        "text", description="text for UTF-8, json for a JSON value, bytes for base64 of anything. Default text."
    )
    schema_: Schema | None = Field(
        None,
        description="JSON Schema of the value (2020-12, see docs), or the name of a shared schema. With as: json; "
        "absent, it is any value.",
    )
    max_bytes: int = Field(
        LOAD_BYTES, ge=1, le=MAX_LOAD, description="Most bytes of the file; a larger one fails the node. Default 1 MiB."
    )


Loads = Annotated[dict[Key, Load], Field(max_length=MAX_ENTRIES)]
"""Name → file, where the name occurs in expressions."""
