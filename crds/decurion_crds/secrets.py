"""Which Secret entries the spec of a resource names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Entry = tuple[str, str]
"""Name of a Secret and key in it."""


def secret_entries(spec: Mapping[str, Any]) -> frozenset[Entry]:
    """The entries of `auth` and of `headers` in the spec of an `LLM`, `MCPServer` or `WorkerPool`.

    What is written otherwise than it may be is passed over: the parser complains of it.
    """
    return frozenset((ref["name"], ref["key"]) for ref in _refs(spec) if "name" in ref and "key" in ref)


def _refs(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield _object(_object(spec.get("auth")).get("secretKeyRef"))
    headers = spec.get("headers")
    for header in headers if isinstance(headers, list) else ():
        yield _object(_object(_object(header).get("valueFrom")).get("secretKeyRef"))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
