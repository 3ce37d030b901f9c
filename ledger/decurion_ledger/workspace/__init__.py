"""Workspaces: the files of a run, in versions that are named by what is in them."""

from decurion_ledger.workspace.cache import Cache
from decurion_ledger.workspace.checkout import Index, Scanned, checkout, scan
from decurion_ledger.workspace.draft import Draft
from decurion_ledger.workspace.edit import check_limits, edited, entry_at, files_of, totals
from decurion_ledger.workspace.merge import CONFLICTS, Conflict, Merged, Policy, merge
from decurion_ledger.workspace.objects import Objects
from decurion_ledger.workspace.overlay import Layer, overlay
from decurion_ledger.workspace.tree import Entry
from decurion_ledger.workspace.upload import Upload
from decurion_ledger.workspace.version import EMPTY, Limits, Version

__all__ = [
    "CONFLICTS",
    "EMPTY",
    "Cache",
    "Conflict",
    "Draft",
    "Entry",
    "Index",
    "Layer",
    "Limits",
    "Merged",
    "Objects",
    "Policy",
    "Scanned",
    "Upload",
    "Version",
    "check_limits",
    "checkout",
    "edited",
    "entry_at",
    "files_of",
    "merge",
    "overlay",
    "scan",
    "totals",
]
