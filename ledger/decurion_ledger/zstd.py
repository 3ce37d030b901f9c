"""The compressors of a thread. Making one costs twenty times what it does with a small segment, and no two threads may
use the same one at a time.
"""

from __future__ import annotations

import threading

import zstandard


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_of_thread = _OfThread()


def compressor(level: int) -> zstandard.ZstdCompressor:
    """This thread's compressor of that level, whose frames say how long their content is and have no checksum."""
    found = _of_thread.compressors.get(level)
    if found is None:
        found = zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=True)
        _of_thread.compressors[level] = found
    return found


def decompressor() -> zstandard.ZstdDecompressor:
    """This thread's decompressor."""
    return _of_thread.decompressor
