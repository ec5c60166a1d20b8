"""Inject faults into specrun, in child processes, and say what was lost.

    python scripts/inject_faults.py [--only WORD...] [--quick] [--every MS] [--moments N] [--list]

A table on stdout has a line for each fault: how often it was injected, with which exit codes the runs ended, and what
was lost. A traceback, a hang, a wrong exit code and a half-written file count as lost, and the script then ends with
exit code 1. Faults that this machine does not allow are named on stderr; mounting a full disk needs root.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent)]

from fault_tools import (  # noqa: E402
    answers,
    disks,
    downloads,
    files,
    memory,
    signals,
    surroundings,
    terminals,
    together,
)
from fault_tools.injecting import Extent, Fault, Place, SkippedFaultError  # noqa: E402

FAULTS: list[Fault] = [
    fault
    for family in (signals, memory, disks, files, answers, together, downloads, terminals, surroundings)
    for fault in family.FAULTS
]
QUICK = Extent(every=0.4, moments=2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="only faults whose names contain one of these words")
    parser.add_argument("--quick", action="store_true", help="few moments of each run")
    parser.add_argument("--every", type=float, default=50, metavar="MS", help="between signals in a short run")
    parser.add_argument("--moments", type=int, default=8, metavar="N", help="signals in a long run")
    parser.add_argument("--list", action="store_true", help="name the faults")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if not arguments.only or any(word in fault.name for word in arguments.only)]
    if arguments.list:
        print("\n".join(fault.name for fault in chosen))
        return 0
    # What a shell starts in the background ignores SIGINT, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    extent = QUICK if arguments.quick else Extent(arguments.every / 1e3, arguments.moments)
    print("| fault | injected | exit codes | lost |\n| --- | --- | --- | --- |", flush=True)
    failed = n_injected = 0
    for fault in chosen:
        with tempfile.TemporaryDirectory(prefix="specrun-faults-") as folder:
            try:
                found = list(fault.inject(Place(Path(folder).resolve() / "place"), extent))
            except SkippedFaultError as error:
                print(f"{fault.name}: left out, {error}", file=sys.stderr)
                continue
        lost = Counter(one.lost for one in found if one.lost)
        codes = Counter(one.code for one in found)
        failed += lost.total()
        n_injected += len(found)
        row = ", ".join(f"{code} ({n})" if len(codes) > 1 else str(code) for code, n in sorted(codes.items()))
        what = "; ".join(f"{n} x {text}" for text, n in lost.items()) or "nothing"
        print(f"| {fault.name} | {len(found)} | {row} | {what} |", flush=True)
    print(f"{n_injected} faults, {failed} with a loss", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
