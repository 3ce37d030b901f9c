"""Whether the statement about a run that has ended says what its log says."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import orjson

from decurion_ledger.verifier.form import canonical
from decurion_ledger.verifier.signatures import is_signed_raw

_TYPE = "application/vnd.in-toto+json"


def statement_fault(
    envelope: Any, *, genesis: Mapping[str, Any], close: Mapping[str, Any], run: str, key: str, certificate: Any
) -> str | None:
    """What is wrong with the envelope, as half a sentence. `genesis` is the first record, `close` the envelope of the
    last one; `key` and `certificate` are those of the driver that closed the run, `key` empty for one without.
    """
    try:
        if envelope.keys() != {"payload", "payloadType", "signatures"} or envelope["payloadType"] != _TYPE:
            return "it is no envelope of a statement"
        payload = base64.b64decode(envelope["payload"], validate=True)
        said = orjson.loads(payload)
        if canonical(said) != payload or base64.b64encode(payload).decode() != envelope["payload"]:
            return "it is not in canonical form"
        fault = _signature_fault(envelope["signatures"], payload, key, certificate)
        return fault or _difference(said, genesis, close, run)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
        return f"it cannot be read ({e})"


def _signature_fault(signatures: Any, payload: bytes, key: str, certificate: Any) -> str | None:
    if not key:
        return None if signatures == [] else "it is signed, and the log is not"
    [one] = signatures
    if one.keys() != {"keyid", "sig", "certificate"} or one["keyid"] != key or one["certificate"] != certificate:
        return "it is signed by another key than that of the driver that closed the run"
    raw = base64.b64decode(one["sig"], validate=True)
    signed = b"DSSEv1 %d %b %d %b" % (len(_TYPE), _TYPE.encode(), len(payload), payload)
    return None if is_signed_raw(key, signed, raw) else "its signature is not that of its key"


def _difference(said: Mapping[str, Any], genesis: Mapping[str, Any], close: Mapping[str, Any], run: str) -> str | None:
    definition, details = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    subject = [{"digest": {"decurion-state-v0": close["state"]}, "name": "state"}]
    if close["output"] is not None:
        subject.append({"digest": {"decurion-value-v1": close["output"]}, "name": "output"})
    core, begun = genesis["core"], genesis["envelope"]
    expected = {
        "_type": (said["_type"], "https://in-toto.io/Statement/v1"),
        "predicateType": (said["predicateType"], "https://slsa.dev/provenance/v1"),
        "subject": (said["subject"], subject),
        "graph": (definition["resolvedDependencies"][0]["digest"], {"decurion-graph": core["node"]}),
        "input": (definition["externalParameters"]["input"], {"decurion-value-v1": core["input"]}),
        "seed": (definition["externalParameters"]["seed"], core["seed"]),
        "invocationId": (details["metadata"]["invocationId"], run),
        "startedOn": (details["metadata"]["startedOn"], begun["at"]),
        "finishedOn": (details["metadata"]["finishedOn"], close["at"]),
    }
    wrong = [name for name, (one, other) in expected.items() if one != other]
    return f"it says something else than the log of {', '.join(wrong)}" if wrong else None
