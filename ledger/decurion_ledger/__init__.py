"""The ledger: records, paths, values, segments, the log of a run, and the stores that keep them."""

from decurion_ledger.path import ROOT, LedgerPath, Step, branch_key
from decurion_ledger.record import Record, RecordType, core_hash, decode, encode, make_core, record_hash
from decurion_ledger.stores import Store, open_store
from decurion_ledger.values import Values, pack, unpack, vhash

__all__ = [
    "ROOT",
    "LedgerPath",
    "Record",
    "RecordType",
    "Step",
    "Store",
    "Values",
    "branch_key",
    "core_hash",
    "decode",
    "encode",
    "make_core",
    "open_store",
    "pack",
    "record_hash",
    "unpack",
    "vhash",
]
