"""From an `LLM` resource to a model that answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decurion_worker.errors import ModelMisconfigured, SecretInvalid, SecretMissing
from decurion_worker.models.openai import OpenAIModel
from decurion_worker.models.port import ChatModel
from decurion_worker.models.scripted import ScriptedModel


def open_model(name: str, spec: Mapping[str, Any], *, secrets: Mapping[tuple[str, str], str]) -> ChatModel:
    """The model of the `LLM` resource `name` with the spec `spec`; to be closed by the caller.

    `secrets` maps (Secret, key) to a value. Bounding its calls by `limits.concurrency` is the caller's.
    Raises `SecretMissing`, `SecretInvalid`, `ModelMisconfigured`.
    """
    match spec.get("protocol"):
        case "openai":
            return OpenAIModel(name, spec, token=_token(spec, secrets))
        case "scripted":
            return ScriptedModel(name, spec.get("scripted") or {})
        case other:
            raise ModelMisconfigured(f"LLM {name} spec.protocol: {other!r} is not known; use openai or scripted")


def _token(spec: Mapping[str, Any], secrets: Mapping[tuple[str, str], str]) -> str | None:
    ref = (spec.get("auth") or {}).get("secretKeyRef")
    if ref is None:
        return None
    name, key = ref["name"], ref["key"]
    try:
        token = secrets[name, key].strip()
    except KeyError:
        raise SecretMissing(name, key) from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise SecretInvalid(name, key)
    return token
