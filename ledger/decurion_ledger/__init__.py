"""The ledger: records, paths, values, segments, the log of a run, and the stores that keep them."""

from decurion_ledger.anchoring import anchor, anchored_runs
from decurion_ledger.final_state import final_state_hash
from decurion_ledger.forms import vhash
from decurion_ledger.keys import Erasure, erase, is_erased, key_of, make_key
from decurion_ledger.lookup import ends, find, find_all
from decurion_ledger.path import ROOT, LedgerPath, Step, branch_key
from decurion_ledger.proving import Proof, prove
from decurion_ledger.reader import SlotReader, list_runs, read_log
from decurion_ledger.record import Record, RecordType, core_hash, decode, encode, make_core, record_hash
from decurion_ledger.sealing import Seal, SealKey
from decurion_ledger.signing import Certificate, Signer, SigningKey, public_keys, public_pem
from decurion_ledger.stores import Credentials, S3Options, Store, open_store
from decurion_ledger.values import Values, pack, unpack
from decurion_ledger.verifier import Anchors, Problem, Proved, Report, check_proof, examine, verify
from decurion_ledger.writer import LogWriter, Observer, Opened, Settings

__all__ = [
    "ROOT",
    "Anchors",
    "Certificate",
    "Credentials",
    "Erasure",
    "LedgerPath",
    "LogWriter",
    "Observer",
    "Opened",
    "Problem",
    "Proof",
    "Proved",
    "Record",
    "RecordType",
    "Report",
    "S3Options",
    "Seal",
    "SealKey",
    "Settings",
    "Signer",
    "SigningKey",
    "SlotReader",
    "Step",
    "Store",
    "Values",
    "anchor",
    "anchored_runs",
    "branch_key",
    "check_proof",
    "core_hash",
    "decode",
    "encode",
    "ends",
    "erase",
    "examine",
    "final_state_hash",
    "find",
    "find_all",
    "is_erased",
    "key_of",
    "list_runs",
    "make_core",
    "make_key",
    "open_store",
    "pack",
    "prove",
    "public_keys",
    "public_pem",
    "read_log",
    "record_hash",
    "unpack",
    "verify",
    "vhash",
]
