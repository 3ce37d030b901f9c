"""How this process gives memory back to the system.

glibc serves a large block by a mapping of its own, which goes back when it is freed, but only up to a threshold that it
raises by itself with every such block that is freed, to 32 MiB at most. From then on objects of 100 KB and more (a run
with a large input, as text, as bytes and parsed) come from the heap, where the few small objects that stay between them
keep the holes from being given back: 0.15 MB for each run that passed, without one object too many.

A threshold that was set by hand stays as it is (mallopt(3), "Dynamic adjustment of the mmap threshold").
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Final

MAPPED_BYTES: Final = 64 * 1024
"""Blocks from this size on are mapped on their own: well below the 90 KB of an input that needs it, well above what is
asked for a thousand times a second."""
TRIM_BYTES: Final = 128 * 1024
"""Free memory at the end of the heap beyond this goes back at once: glibc's own first value, which would grow too."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_SET_BY_USER: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def give_back_large_blocks(environ: Mapping[str, str] | None = None) -> bool:
    """Fix glibc's thresholds for this process, for good. Says whether it did.

    It does not where the environment sets them, nor with another C library (musl maps large blocks anyway).
    """
    if any(name in (os.environ if environ is None else environ) for name in _SET_BY_USER):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    mapped = mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
    trimmed = mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
    return bool(mapped and trimmed)
