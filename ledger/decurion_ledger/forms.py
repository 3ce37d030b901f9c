"""The form of a value: what enters its hash, and what is stored of it. See `values`."""

from __future__ import annotations

import math
import reprlib
from typing import NamedTuple

from decurion_crds.canonical import Json, canonical, digest
from decurion_crds.wide import ListRef, has_refs, mark
from decurion_ledger.errors import NotJson
from decurion_ledger.lists import FOLDED, LIST_LIMIT, ListBuilder, folded_ref, stored_ref
from decurion_ledger.sealing import Seal


class Form(NamedTuple):
    """One value: what enters its hash, what is stored of it, and the bytes of its plain canonical form. `seal` is that
    of the run whose key names it, None where its hash does.
    """

    folded: bytes
    stored: bytes
    size: int
    seal: Seal | None = None

    @property
    def hash(self) -> str:
        return digest("value/v1", self.folded) if self.seal is None else self.seal.commit(self.folded)


def vhash(value: Json) -> str:
    """SHA-256, in hex, of `value` under the domain `value/v1`, wide lists folded.

    Deepest first, each list whose canonical form exceeds 64 KiB is replaced by `{"$list": {count, root}}`,
    `root` being the Merkle root (domain `list/v1`) over its items' value hashes. An object of the author's
    own whose only key is `$list` enters as `{"$list": {"value": …}}`, so no value has the hash of another.
    A `ListRef` has the hash of its list. Raises `NotJson`.
    """
    return form_of(value, {}).hash


def value_bytes(value: Json) -> bytes:
    """The canonical bytes of `value`. Raises `NotJson` for what JSON cannot hold, NaN and infinities
    included.
    """
    try:
        raw = canonical(value)
    except TypeError as e:
        raise NotJson(reprlib.repr(value), f"the ledger keeps JSON values only ({e})") from e
    # orjson writes NaN and infinities as null: only a text with a null can hide one
    if b"null" in raw and _has_non_finite(value):
        raise NotJson(reprlib.repr(value), "NaN and infinities are no JSON numbers, return null or a text instead")
    return raw


def form_of(value: Json, blobs: dict[str, bytes], seal: Seal | None = None) -> Form:
    """The form of `value`; chunks of its wide lists, which must be stored before it is named, go to `blobs`.
    With `seal` it is named by a run's key, and chunks are encrypted with it.

    Raises `NotJson`.
    """
    if has_refs(value):
        return _wide_form(value, blobs, seal)
    try:
        raw = value_bytes(value)
    except NotJson:
        marked = mark(value)
        if not has_refs(marked):
            raise
        return _wide_form(marked, blobs, seal)
    if len(raw) <= LIST_LIMIT and b'"$list"' not in raw:
        return Form(raw, raw, len(raw), seal)
    return _wide_form(value, blobs, seal)


def _wide_form(value: Json, blobs: dict[str, bytes], seal: Seal | None) -> Form:
    if isinstance(value, ListRef):
        return Form(folded_ref(value), stored_ref(value), value.bytes, seal)
    if isinstance(value, list | tuple):
        return _list_form(value, blobs, seal)
    if isinstance(value, dict):
        return _object_form(value, blobs, seal)
    raw = value_bytes(value)
    return Form(raw, raw, len(raw), seal)


def _list_form(value: list[Json] | tuple[Json, ...], blobs: dict[str, bytes], seal: Seal | None) -> Form:
    forms = [form_of(item, blobs, seal) for item in value]
    if sum(len(form.folded) for form in forms) + len(forms) + 1 <= LIST_LIMIT:
        folded = b"[" + b",".join(form.folded for form in forms) + b"]"
        stored = b"[" + b",".join(form.stored for form in forms) + b"]"
        return Form(folded, stored, sum(form.size for form in forms) + len(forms) + 1, seal)
    builder = ListBuilder(blobs, seal)
    for form in forms:
        builder.add(hash=bytes.fromhex(form.hash), stored=form.stored, size=form.size, folded=len(form.folded))
    return _wide_form(builder.finish(), blobs, seal)


def _object_form(value: dict[str, Json], blobs: dict[str, bytes], seal: Seal | None) -> Form:
    forms = [(canonical(key), form_of(value[key], blobs, seal)) for key in sorted(value)]
    folded = b"{" + b",".join(key + b":" + form.folded for key, form in forms) + b"}"
    stored = b"{" + b",".join(key + b":" + form.stored for key, form in forms) + b"}"
    size = sum(len(key) + 1 + form.size for key, form in forms) + max(1, len(forms)) + 1
    if value.keys() == {FOLDED}:
        start = len(b'{"$list":')
        folded, stored = (b'{"$list":{"value":' + raw[start:] + b"}" for raw in (folded, stored))
    return Form(folded, stored, size, seal)


def _has_non_finite(value: Json) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_non_finite, value))
    return False
