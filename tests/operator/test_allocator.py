"""What stays in the process of memory that was freed, as the C library counts it; each case in a process of its own."""

import json
import os
import platform
import subprocess
import sys

import pytest

from decurion_operator.allocator import give_back_large_blocks

# Large blocks come and go in batches, with a small object that stays after each, as runs pass through the operator.
PROGRAM = """
import ctypes, json, sys
from decurion_operator.allocator import give_back_large_blocks

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

done = give_back_large_blocks() if sys.argv[1] == "fixed" else None
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
kept = []
for batch in range(50):
    large = []
    for number in range(20):
        large.append(bytearray(200_000))
        kept.append(bytearray(1_000))
    large.clear()
print(json.dumps({"done": done, "free": libc.mallinfo2().fordblks}))
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="thresholds of glibc")


def free_bytes(how: str, **more: str) -> tuple[bool | None, int]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))} | more
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    return found["done"], found["free"]


@glibc
def test_what_large_objects_took_goes_back_though_small_ones_stay_between_them() -> None:
    left_alone, fixed = free_bytes("alone")[1], free_bytes("fixed")
    assert left_alone > 2_000_000, "the case no longer shows what it is about"
    assert fixed[0] is True
    assert fixed[1] < 1_000_000


def test_thresholds_that_somebody_set_are_left_alone() -> None:
    assert give_back_large_blocks({"MALLOC_MMAP_THRESHOLD_": "1000000"}) is False
    assert give_back_large_blocks({"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}) is False
