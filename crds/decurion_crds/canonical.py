"""Canonical bytes and domain-separated digests: the one place where a value becomes bytes that are hashed.

The profile is JSON as `orjson` writes it with sorted keys: UTF-8, no white space, keys by code point. It equals
RFC 8785 but for two named differences, shown by a test against the reference implementation: floats keep their
type (`1.0`, `1e16`), and keys outside the Basic Multilingual Plane sort by code point, not by UTF-16 unit.
See `docs/decisions/0003-canonical-json.md`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import orjson

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys. Kept as `Any`: mypy checks no recursion."""


def canonical(value: Json) -> bytes:
    """The canonical bytes of a JSON value.

    Raises `TypeError` for what is no JSON value (sets, bytes, integers beyond 64 bits, lone surrogates).
    NaN and infinities would be written as `null`; `decurion_crds.values` refuses them before they get here.
    """
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def digest(domain: str, *parts: bytes) -> str:
    """SHA-256, in hex, of `parts` behind the prefix `decurion/<domain>\\0`: hashes of different kinds differ."""
    h = _begun(domain).copy()
    for part in parts:
        h.update(part)
    return h.hexdigest()


@functools.lru_cache(maxsize=64)
def _begun(domain: str) -> hashlib._Hash:
    return hashlib.sha256(b"decurion/" + domain.encode() + b"\0")


def merkle_root(domain: str, leaves: Sequence[bytes]) -> str:
    """Root, in hex, of the Merkle tree over `leaves` in RFC 6962 form (leaf prefix 0, node prefix 1), under `domain`.

    The tree of no leaves has the digest of the domain alone.
    """
    if not leaves:
        return digest(domain)
    prefix = b"decurion/" + domain.encode() + b"\0"
    level = [hashlib.sha256(prefix + b"\0" + leaf).digest() for leaf in leaves]
    while len(level) > 1:
        pairs = [hashlib.sha256(prefix + b"\1" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            pairs.append(level[-1])
        level = pairs
    return level[0].hex()


def drop_nulls(value: Json) -> Json:
    """`value` without the null members of its objects, and their keys in order, recursively; nulls in arrays stay.

    The three ways to apply a manifest treat such members differently, and an API server sorts keys: nobody may depend
    on either.
    """
    if isinstance(value, Mapping):
        return {k: drop_nulls(value[k]) for k in sorted(value) if value[k] is not None}
    if isinstance(value, list):
        return [drop_nulls(v) for v in value]
    return value
