"""How each kind of node turns its snapshot into an output; one module a kind."""

from decurion_worker.nodes.node import NodeResult, execute

__all__ = ["NodeResult", "execute"]
