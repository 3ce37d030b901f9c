"""What a process that holds many model calls needs of its operating system."""

from __future__ import annotations

import resource

OPEN_FILES = 16_384


def raise_open_files() -> None:
    """Allow this process more open connections, as far as its hard limit goes: each model call in flight is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
