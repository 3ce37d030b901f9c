"""`python hack/soak graphs --seeds 20000`: many seeds, each checked; the first line of a failure says which one it was.

    graphs   random graphs, cut off and resumed. `--sweep-every N`: every N-th seed is cut off at each of its records,
             the others at one.
    ledger   histories of the log protocol under faults. `--variant NAME` puts a known fault into the product, which is
             to be found; `--told` prints the histories that violate something.
    duel     `--minutes 5`: ten processes that fight for runs on a real S3 server behind a proxy with faults. `--first`
             is the seed of the blows.
    mutations  single changes of what is stored, each of which the verifier has to report.

The status is 1 when anything was violated. A seed can be looked at again by `--first SEED --seeds 1`. Ctrl-C ends
graphs and ledger early, with the sums until then.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

MAX_TOLD = 5


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="hack/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["graphs", "ledger", "duel", "mutations"])
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--sweep-every", type=int, default=10)
    parser.add_argument("--variant", default="")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--job", type=int, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.what == "duel":
        return _duel(given)
    if given.job is not None:
        return _one(given)
    jobs = min(given.jobs, given.seeds)
    command = [sys.executable, str(Path(__file__).parent), *arguments, "--jobs", str(jobs)]
    from soak.ending import pass_on

    begun = time.monotonic()
    parts = [
        # In a session of its own: Ctrl-C must not end the interpreters of nodes, which would be taken for a fault.
        subprocess.Popen(
            [*command, "--job", str(job)], stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )
        for job in range(jobs)
    ]
    pass_on(parts)
    sums: Counter[str] = Counter()
    for part in parts:
        out, _ = part.communicate()
        if part.returncode in (0, 1) and out:
            sums.update(json.loads(out.splitlines()[-1]))
    failed = any(part.returncode for part in parts)
    print(json.dumps({**sums, "seconds": round(time.monotonic() - begun, 1)}))
    return int(failed)


def _one(given: argparse.Namespace) -> int:
    # A seed makes and drops many small objects: looking for cycles among them at each 700 took 8 % of the time.
    gc.set_threshold(50_000, 20, 100)
    sums = {"graphs": _graphs, "ledger": _ledger, "mutations": _mutations}[given.what](given)
    print(json.dumps(sums))
    return int(sums["violations"] > 0)


def _graphs(given: argparse.Namespace) -> Counter[str]:
    from decurion_crds.compile import Checker
    from soak.ending import until_told
    from soak.graphs import check, seeds
    from soak.judges import Violated

    sums = Counter({"seeds": 0, "records": 0, "sweeps": 0, "violations": 0})
    with Checker() as checker:
        drawn = seeds(given.first, given.seeds, jobs=given.jobs, job=given.job, sweep_every=given.sweep_every)
        for seed in until_told(drawn):
            sweep = seed % given.sweep_every == 0
            try:
                sums["records"] += check(seed, checker, sweep=sweep)
            except Violated as error:
                _tell(sums, [str(error)])
            sums.update(seeds=1, sweeps=int(sweep))
    return sums


def _ledger(given: argparse.Namespace) -> Counter[str]:
    from ledger import check

    from soak.ending import until_told

    sums = Counter({"seeds": 0, "violations": 0})
    for seed in until_told(range(given.first + given.job, given.first + given.seeds, given.jobs)):
        said, met = check(seed, given.variant, told=given.told)
        if said:
            _tell(sums, said)
        sums.update(met)
        sums["seeds"] += 1
    return sums


def _duel(given: argparse.Namespace) -> int:
    import asyncio
    import tempfile

    from duel import Duel

    from cluster.s3 import S3Server

    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(Path(folder) / "s3")
        server.start()
        try:
            duel = Duel(server, Path(folder), given.first, given.minutes * 60)
            violations = asyncio.run(duel.fight())
        finally:
            server.stop()
    sums = Counter({"violations": 0})
    if violations:
        _tell(sums, violations)
    print(json.dumps({**sums, **duel.met}))
    return int(bool(violations))


def _mutations(given: argparse.Namespace) -> Counter[str]:
    import asyncio

    from tampering import check

    sums = Counter({"seeds": 0, "violations": 0})
    for said, kind in asyncio.run(check(range(given.first + given.job, given.first + given.seeds, given.jobs))):
        if said:
            _tell(sums, [said])
        sums.update({"seeds": 1, kind: 1})
    return sums


def _tell(sums: Counter[str], said: list[str]) -> None:
    sums["violations"] += 1
    if sums["violations"] <= MAX_TOLD:
        print("\n".join(said), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
