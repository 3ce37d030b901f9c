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
from collections.abc import Sequence
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


async def arms_here(count: int) -> tuple[float, float, float, int]:
    """Seconds to make the arms, seconds and CPU seconds to merge them, and PUTs."""
    store = Counted(MemoryStore())
    objects = Objects(store, "bench")
    base = await made(objects, EMPTY, {f"base/{i}.txt": text(0, i) for i in range(BASE)})
    began = time.perf_counter()
    versions = await asyncio.gather(
        *(made(objects, base, {f"out/{arm}/{i}.txt": text(arm, i) for i in range(FILES)}) for arm in range(count))
    )
    between, worked = time.perf_counter(), time.process_time()
    done = await merge(objects, base, dict(enumerate(versions)), Policy.FAIL)
    ended = time.perf_counter()
    assert done.version is not None
    return between - began, ended - between, time.process_time() - worked, store.puts


def git(folder: Path, *arguments: str, given: bytes | None = None) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, input=given, capture_output=True, env=NOBODY, check=True)
    return done.stdout.decode().strip()


def _commit(ref: str, files: dict[str, str], start: str = "") -> bytes:
    parts = [f"commit refs/heads/{ref}\ncommitter b <b@example.com> 0 +0000\ndata 0\n{start}".encode()]
    for path, content in files.items():
        raw = content.encode()
        parts.append(f"M 644 inline {path}\ndata {len(raw)}\n".encode() + raw + b"\n")
    return b"".join(parts)


def arms_of_git(folder: Path, count: int, merged: int) -> tuple[float, float]:
    """Seconds to make the commits, and seconds to merge some of them one after the other."""
    git(folder, "init", "--quiet", "--bare", ".")
    git(folder, "fast-import", "--quiet", given=_commit("base", {f"base/{i}.txt": text(0, i) for i in range(BASE)}))
    arms = [
        _commit(f"arm{arm}", {f"out/{arm}/{i}.txt": text(arm, i) for i in range(FILES)}, "from refs/heads/base^0\n")
        for arm in range(count)
    ]
    began = time.perf_counter()
    git(folder, "fast-import", "--quiet", given=b"".join(arms))
    between = time.perf_counter()
    head = git(folder, "rev-parse", "base")
    for arm in range(merged):
        tree = git(folder, "merge-tree", "--write-tree", head, f"arm{arm}")
        head = git(folder, "commit-tree", tree, "-p", head, "-m", "m")
    return between - began, time.perf_counter() - between


def fill(folder: Path, count: int) -> None:
    for start in range(0, count, 100):
        below = folder / f"{start // 100:04d}"
        below.mkdir(parents=True)
        for i in range(start, min(start + 100, count)):
            (below / f"{i:06d}.txt").write_text(f"file {i}\n")


async def scan_here(folder: Path) -> tuple[float, float, float]:
    """Seconds of the first scan, which reads all, seconds and CPU seconds of one that finds nothing changed."""
    objects = Objects(MemoryStore(), "bench")
    began = time.perf_counter()
    first = await scan(objects, folder, EMPTY)
    between = time.perf_counter()
    # What was written just before the first scan may have changed since: the second one says so, and reads it.
    second = await scan(objects, folder, first.version, index=first.index)
    warm, worked = time.perf_counter(), time.process_time()
    third = await scan(objects, folder, first.version, index=second.index)
    ended = time.perf_counter()
    assert third.hashed == 0
    assert third.version == first.version
    return between - began, ended - warm, time.process_time() - worked


def scan_of_git(folder: Path) -> tuple[float, float]:
    """Seconds of `git add`, and of a `git status` that finds nothing changed."""
    git(folder, "init", "--quiet", ".")
    began = time.perf_counter()
    git(folder, "add", ".")
    between = time.perf_counter()
    git(folder, "status", "--porcelain", "--untracked-files=no")
    warm = time.perf_counter()
    git(folder, "status", "--porcelain", "--untracked-files=all")
    return between - began, time.perf_counter() - warm


def workspace(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench workspace", description=__doc__)
    parser.add_argument("--arms", type=int, default=2000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--git-merges", type=int, default=200, help="how many of the arms git merges")
    given = parser.parse_args(arguments)
    make, merged, worked, puts = asyncio.run(arms_here(given.arms))
    with tempfile.TemporaryDirectory() as folder:
        make_git, merged_git = arms_of_git(Path(folder), given.arms, given.git_merges)
    both = f"made in {make:.2f} s, merged in {merged:.2f} s (CPU {worked:.2f} s)"
    print(f"{given.arms:,} arms of {FILES} files: {both}, {puts} PUTs")
    some = f"{given.git_merges} of them merged one by one in {merged_git:.2f} s (merge-tree)"
    print(f"  git: made in {make_git:.2f} s (fast-import), {some}")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), given.files)
        cold, warm, worked = asyncio.run(scan_here(Path(folder)))
        cold_git, warm_git = scan_of_git(Path(folder))
    print(f"{given.files:,} files: first scan {cold:.2f} s, warm scan {warm:.2f} s (CPU {worked:.2f} s)")
    print(f"  git: add {cold_git:.2f} s, warm status {warm_git:.2f} s")
    return 0
