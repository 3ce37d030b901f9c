"""Workspaces beside git: many arms that each wrote ten files are merged, and a large folder in which nothing changed is
scanned.

`arms` is 2,000 versions of ten new files each, made side by side on a memory store, and their merge; git makes as many
commits from one base by `fast-import`, and merges some of them one after the other by `merge-tree`. `scan` is 100,000
files in 1,000 folders, scanned with what is known of them; git says by `status` what changed, its index warm too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from decurion_crds.globs import ALL
from decurion_ledger.stores import Counted, MemoryStore
from decurion_ledger.workspace import EMPTY, Draft, Objects, Policy, Version, merge, scan

FILES = 10
BASE = 200
NOBODY = {
    **os.environ,
    "GIT_AUTHOR_NAME": "bench",
    "GIT_AUTHOR_EMAIL": "bench@example.com",
    "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@example.com",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def text(arm: int, file: int) -> str:
    return f"arm {arm} file {file}\n" * 20


async def made(objects: Objects, base: Version, files: dict[str, str]) -> Version:
    draft = Draft(objects, base, read=ALL, write=ALL)
    for path, content in files.items():
        draft.write(path, content.encode())
    return await draft.commit()


@dataclass(slots=True)
class Spent:
    """What a piece of work took, in seconds: of the clock, and of the processors, those of its children included."""

    wall: float = 0.0
    cpu: float = 0.0

    def __str__(self) -> str:
        return f"{self.wall:.2f} s (CPU {self.cpu:.2f} s)"


@contextmanager
def spent() -> Iterator[Spent]:
    def cpu() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    took, began, worked = Spent(), time.perf_counter(), cpu()
    yield took
    took.wall, took.cpu = time.perf_counter() - began, cpu() - worked


async def arms_here(count: int) -> tuple[Spent, Spent, int]:
    """Making the arms, merging them, and PUTs."""
    store = Counted(MemoryStore())
    objects = Objects(store, "bench")
    base = await made(objects, EMPTY, {f"base/{i}.txt": text(0, i) for i in range(BASE)})
    with spent() as make:
        versions = await asyncio.gather(
            *(made(objects, base, {f"out/{arm}/{i}.txt": text(arm, i) for i in range(FILES)}) for arm in range(count))
        )
    with spent() as merging:
        done = await merge(objects, base, dict(enumerate(versions)), Policy.FAIL)
    assert done.version is not None
    return make, merging, store.puts


def git(folder: Path, *arguments: str, given: bytes | None = None) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, input=given, capture_output=True, env=NOBODY, check=True)
    return done.stdout.decode().strip()


def _commit(ref: str, files: dict[str, str], start: str = "") -> bytes:
    parts = [f"commit refs/heads/{ref}\ncommitter b <b@example.com> 0 +0000\ndata 0\n{start}".encode()]
    for path, content in files.items():
        raw = content.encode()
        parts.append(f"M 644 inline {path}\ndata {len(raw)}\n".encode() + raw + b"\n")
    return b"".join(parts)


def arms_of_git(folder: Path, count: int, merged: int) -> tuple[Spent, Spent]:
    """Making the commits, and merging some of them one after the other."""
    git(folder, "init", "--quiet", "--bare", ".")
    git(folder, "fast-import", "--quiet", given=_commit("base", {f"base/{i}.txt": text(0, i) for i in range(BASE)}))
    arms = [
        _commit(f"arm{arm}", {f"out/{arm}/{i}.txt": text(arm, i) for i in range(FILES)}, "from refs/heads/base^0\n")
        for arm in range(count)
    ]
    with spent() as make:
        git(folder, "fast-import", "--quiet", given=b"".join(arms))
    head = git(folder, "rev-parse", "base")
    with spent() as merging:
        for arm in range(merged):
            tree = git(folder, "merge-tree", "--write-tree", head, f"arm{arm}")
            head = git(folder, "commit-tree", tree, "-p", head, "-m", "m")
    return make, merging


def fill(folder: Path, count: int) -> None:
    for start in range(0, count, 100):
        below = folder / f"{start // 100:04d}"
        below.mkdir(parents=True)
        for i in range(start, min(start + 100, count)):
            (below / f"{i:06d}.txt").write_text(f"file {i}\n")


async def scan_here(folder: Path) -> tuple[Spent, Spent]:
    """The first scan, which reads all, and one that finds nothing changed."""
    objects = Objects(MemoryStore(), "bench")
    with spent() as cold:
        known = await scan(objects, folder, EMPTY)
    version = known.version
    # What was written just before a scan may have changed since: the next one says so, and reads it.
    while known.hashed:
        known = await scan(objects, folder, version, index=known.index)
    with spent() as warm:
        again = await scan(objects, folder, version, index=known.index)
    assert (again.hashed, again.version) == (0, version)
    return cold, warm


def scan_of_git(folder: Path) -> tuple[Spent, Spent]:
    """`git add`, and a `git status` that finds nothing changed."""
    git(folder, "init", "--quiet", ".")
    with spent() as cold:
        git(folder, "add", ".")
    git(folder, "status", "--porcelain", "--untracked-files=no")
    with spent() as warm:
        git(folder, "status", "--porcelain", "--untracked-files=all")
    return cold, warm


def workspace(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench workspace", description=__doc__)
    parser.add_argument("--arms", type=int, default=2000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--git-merges", type=int, default=200, help="how many of the arms git merges")
    given = parser.parse_args(arguments)
    make, merged, puts = asyncio.run(arms_here(given.arms))
    print(f"{given.arms:,} arms of {FILES} files: made in {make}, merged in {merged}, {puts} PUTs")
    with tempfile.TemporaryDirectory() as folder:
        make, merged = arms_of_git(Path(folder), given.arms, given.git_merges)
    some = f"{given.git_merges} of them merged one by one in {merged} (merge-tree)"
    print(f"  git: made in {make} (fast-import), {some}")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), given.files)
        cold, warm = asyncio.run(scan_here(Path(folder)))
        print(f"{given.files:,} files: first scan {cold}, warm scan {warm}")
        cold, warm = scan_of_git(Path(folder))
    print(f"  git: add {cold}, warm status {warm}")
    return 0
