"""Which Secrets may be used, and what to say about those that may not.

A Secret is usable when it carries the label `decurion.dev/use: "true"`. Nobody learns from us whether one without it
exists: whoever may write an LLM is not thereby allowed to look at Secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from decurion_crds.secrets import Entry, secret_entries

USE_LABEL: Final = "decurion.dev/use"
USE_SELECTOR: Final = f"{USE_LABEL}=true"

STORE_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""The entries that the Secret of a ledger store must have; AWS_SESSION_TOKEN may stand beside them."""


def not_usable(name: str, key: str | None = None) -> str:
    """What to do about a Secret, or about one entry of a usable one."""
    if key is not None:
        return f'Secret "{name}" has no entry "{key}": add it, or name another key.'
    return f'Secret "{name}" does not exist or is not labelled {USE_SELECTOR}: create it with that label.'


def secret_refs(*specs: Mapping[str, Any]) -> frozenset[Entry]:
    """The Secret entries that specs of LLMs, MCPServers or WorkerPools refer to."""
    whole = [name for spec in specs if (name := store_secret(spec))]
    found = frozenset(entry for spec in specs for entry in secret_entries(spec))
    return found | {(name, key) for name in whole for key in STORE_KEYS}


def store_secret(spec: Mapping[str, Any]) -> str:
    """The name of the Secret with the keys of a WorkerPool's ledger store; empty where there is none."""
    ledger = spec.get("ledger")
    credentials = ledger.get("credentials") if isinstance(ledger, Mapping) else None
    ref = credentials.get("secretRef") if isinstance(credentials, Mapping) else None
    return str(ref.get("name") or "") if isinstance(ref, Mapping) else ""
