"""`python hack/soak graphs --seeds 20000`: many seeds, each checked; the first line of a failure says which one it was.

`--sweep-every N`: every N-th seed is cut off at each of its records, the others at one. The status is 1 when anything
was violated. A seed can be looked at again by `--first SEED --seeds 1`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

MAX_TOLD = 5


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hack/soak", description=__doc__)
    parser.add_argument("what", choices=["graphs"])
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--sweep-every", type=int, default=10)
    parser.add_argument("--job", type=int, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.job is not None:
        return _one(given)
    jobs = min(given.jobs, given.seeds)
    command = [sys.executable, str(Path(__file__).parent), *arguments, "--jobs", str(jobs)]
    begun = time.monotonic()
    parts = [
        subprocess.Popen([*command, "--job", str(job)], stdout=subprocess.PIPE, text=True, bufsize=1)
        for job in range(jobs)
    ]
    sums = {"seeds": 0, "records": 0, "sweeps": 0, "violations": 0}
    for part in parts:
        out, _ = part.communicate()
        last = json.loads(out.splitlines()[-1]) if part.returncode in (0, 1) and out else {}
        sums = {name: total + last.get(name, 0) for name, total in sums.items()}
    failed = any(part.returncode for part in parts)
    print(json.dumps({**sums, "seconds": round(time.monotonic() - begun, 1)}))
    return int(failed)


def _one(given: argparse.Namespace) -> int:
    from decurion_crds.compile import Checker
    from graphs import Violated, check, seeds

    done = records = sweeps = violations = 0
    with Checker() as checker:
        mine = seeds(given.first, given.seeds, jobs=given.jobs, job=given.job, sweep_every=given.sweep_every)
        for seed in mine:
            sweep = seed % given.sweep_every == 0
            try:
                records += check(seed, checker, sweep=sweep)
            except Violated as error:
                violations += 1
                if violations <= MAX_TOLD:
                    print(error, file=sys.stderr, flush=True)
            done, sweeps = done + 1, sweeps + sweep
    print(json.dumps({"seeds": done, "records": records, "sweeps": sweeps, "violations": violations}))
    return int(violations > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
