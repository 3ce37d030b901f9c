"""Stores: the port, and the places that implement it. `S3Store` is opened by `open_store`; importing it needs
boto3.
"""

from decurion_ledger.stores.counted import Counted
from decurion_ledger.stores.local import LocalStore
from decurion_ledger.stores.memory import MemoryStore
from decurion_ledger.stores.port import ChecksumSent, ObjectInfo, OthersKeys, Put, Range, Store, check_key
from decurion_ledger.stores.uri import Credentials, S3Options, open_store

__all__ = [
    "ChecksumSent",
    "Counted",
    "Credentials",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "OthersKeys",
    "Put",
    "Range",
    "S3Options",
    "Store",
    "check_key",
    "open_store",
]
