"""`python hack/bench fanout`: benches, each beside a peer or a limit that is measured in the same run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

BENCHES = ("compile", "context", "fanout", "ledger", "reliability", "runs", "wide", "workspace")


def main(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "fanout"
    if name not in BENCHES:
        print(f"there is no bench {name}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    bench = importlib.import_module(name)
    return int(getattr(bench, name)(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
