"""System calls of this process that fail from now on, for good: by a seccomp filter, as a disk that broke.

    python hack/failing_calls.py FOLDER CALL ERRNO    writes results into a ledger in FOLDER, breaks CALL, goes on

It says `ack PATH` of what it was promised, `broken` once the call fails, and at the end the name of the error.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import struct
import sys

from decurion_ledger import LogWriter, Record, RecordType, open_store
from decurion_ledger.errors import LedgerError
from decurion_ledger.patience import Patience
from decurion_ledger.writer import Settings
from duellist import result, say

CALLS = {
    "x86_64": {"fsync": (74,), "link": (86, 265), "write": (1, 18, 20)},
    "aarch64": {"fsync": (82,), "link": (37,), "write": (64, 68, 66)},
}
"""The numbers of the calls on the machines that tests run on."""
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NO_NEW_PRIVILEGES = 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def break_call(name: str, error: int, *, spared: int = -1) -> None:
    """Let the system call `name` fail with `error` in every thread; but not on the file `spared`."""
    machine = platform.machine()
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, 0)]
    for number in CALLS[machine][name]:
        # load the first argument and compare it, then fail; else go on behind
        program += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, 16), (_EQUAL, 1, 0, spared & 0xFFFFFFFF)]
        program += [(_RETURN, 0, 0, _ERRNO | error), (_RETURN, 0, 0, _ALLOW)]
    program.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _ALL_THREADS, filter_):
        raise OSError(ctypes.get_errno(), "seccomp")


async def main(folder: str, call: str, error: int) -> None:
    patience = Patience(total=1.0, blocked=0.5)
    opened = await LogWriter.open(
        open_store(folder),
        "run-1",
        leader_epoch=1,
        driver="first",
        genesis=lambda: Record.event(RecordType.GENESIS, "/", {}),
        settings=Settings(patience=patience),
    )
    for number in range(40):
        if number == 7:
            break_call(call, error, spared=1)
            say("broken")
        try:
            await opened.writer.append([result(number, "first")])
        except LedgerError as failed:
            say(type(failed).__name__)
            os._exit(0)
        say("ack", f"/n{number}")
    os._exit(1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], getattr(errno, sys.argv[3])))
