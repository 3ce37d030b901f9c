"""The statement about a run that has ended: what came out, and what it was made of.

An in-toto Statement v1 with the predicate SLSA provenance v1. Digests have names of their own, since they are SHA-256
behind a domain's prefix and not of a file: `decurion-state-v0` of the final state, `decurion-value-v1` of values,
`decurion-graph` of compiled graphs, `decurion-spec-v0` of the canonical spec of a model or tool server.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from urllib.parse import quote

from decurion_crds.canonical import Json, canonical, digest
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Certificate, Record

MOST_READ = 256
"""So many nodes that read files are named, in the order in which they were; the statement says how many there were."""
BUILD_TYPE = "https://decurion.dev/run/v1"


class Materials:
    """What a run is made of beyond its graph: `take` every record of its log."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._graph = graph
        self._genesis: Record | None = None
        self._reading = {
            node.digest
            for scope in (graph.root, *graph.templates.values())
            for node in scope.nodes
            if node.load or (node.map is not None and node.map.items is None)
        }
        self._read: list[Json] = []
        self._count = 0

    def take(self, record: Record) -> None:
        if record.type == "genesis":
            self._genesis = record
        core = record.core
        if core is None or core["node"] not in self._reading or core["type"] not in ("commit", "scope_opened"):
            return
        self._count += 1
        # Of a map the items that were listed or read, of a node what it loaded.
        value = core["delta"] if core["type"] == "scope_opened" else core["input"]
        if value is not None and len(self._read) < MOST_READ:
            self._read.append({"name": core["path"], "digest": {"decurion-value-v1": value}})

    def statement(self, run: str, close: Mapping[str, Json], *, by: Certificate | None) -> dict[str, Json] | None:
        """The statement, for the envelope of the close record; `by` says who appointed the driver, if anybody did. None
        for a log whose first record is not known.
        """
        if self._genesis is None or self._genesis.core is None:
            return None
        core, begun = self._genesis.core, self._genesis.envelope
        subject = [{"name": "state", "digest": {"decurion-state-v0": close["state"]}}]
        if close["output"] is not None:
            subject.append({"name": "output", "digest": {"decurion-value-v1": close["output"]}})
        return {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": subject,
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "graph": self._graph.name,
                        "name": begun["name"],
                        "namespace": begun["namespace"],
                        "input": {"decurion-value-v1": core["input"]},
                        "seed": core["seed"],
                        "scheduledAt": begun["facts"]["scheduledAt"],
                    },
                    "internalParameters": {"outcome": close["outcome"], "nodesThatRead": self._count},
                    "resolvedDependencies": [*self._dependencies(core["node"]), *self._read],
                },
                "runDetails": {
                    "builder": {"id": _builder(by), "version": {"decurion": _version()}},
                    "metadata": {"invocationId": run, "startedOn": begun["at"], "finishedOn": close["at"]},
                },
            },
        }

    def _dependencies(self, graph: str) -> list[Json]:
        found: list[Json] = [{"name": f"TaskGraph/{self._graph.name}", "digest": {"decurion-graph": graph}}]
        for kind, specs in (("LLM", self._graph.llms), ("MCPServer", self._graph.servers)):
            for ref, spec in sorted(specs.items()):
                named = {name: spec[name] for name in ("protocol", "model", "endpoint", "url") if spec.get(name)}
                pinned = {"decurion-spec-v0": digest("spec/v0", canonical(spec))}
                found.append({"name": f"{kind}/{ref}", "digest": pinned, "annotations": named})
        return found


@cache
def _version() -> str:
    """Read from the installed package's metadata, a file."""
    return version("decurion")


def _builder(certificate: Certificate | None) -> str:
    """Who vouches for what the driver wrote, as a URI."""
    return f"urn:decurion:cluster:{quote(certificate.cluster)}" if certificate is not None else "urn:decurion:unsigned"
