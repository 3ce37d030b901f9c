"""The verifier: whether what is stored for a run is a log that a correct writer could have left, and who wrote it.

It shares no code with the writer: segments are parsed, trees, value hashes and signatures computed here from the
description of the format (see `segment`, `record`, `values`, `signing`), so that a fault there does not verify itself.

It finds every change of a stored byte, every object that is missing, moved or copied from another run, every breach
of the rules of ownership and of one result a path, a log that ends before its `final` says, and with a root key every
segment that was not written by a driver which its holder had appointed for this run. Alone it cannot find that the
newest slots of an open run are missing, which anchors show, nor, without a root key, a log that was rewritten whole,
`final` included.
"""

from decurion_ledger.verifier.anchors import Anchors
from decurion_ledger.verifier.audit import examine, verify
from decurion_ledger.verifier.problem import INVARIANTS, Problem, Report
from decurion_ledger.verifier.proofs import Proved, check_proof

__all__ = ["INVARIANTS", "Anchors", "Problem", "Proved", "Report", "check_proof", "examine", "verify"]
