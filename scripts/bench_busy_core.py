"""What a busy core costs: plain decoding beside 0, 1, ... busy loops, with as many threads as cores and with fewer.

    python scripts/bench_busy_core.py --target FILE [-n TOKENS] [--repeat N]

A busy loop computes in Python, in a process of its own. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import specrun
from specrun.hardware.cpu import usable_cores

# It looks now and then whether its parent is still there, so that it outlives nobody who is killed.
LOOP = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""
PROMPT = "def read_config(path):\n"


@contextmanager
def busy(n_loops: int) -> Iterator[None]:
    """So many busy loops run inside the block."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP, str(os.getpid())]) for _ in range(n_loops)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def rates(target: str, threads: int, n_tokens: int, repeat: int) -> list[float]:
    """Tokens per second of each repetition but the first, which reads the weights from disk."""
    found = []
    with specrun.load(target, "none", speculate="off", threads=threads) as model:
        for _ in range(repeat + 1):
            started = time.perf_counter()
            model.generate(PROMPT, raw=True, max_tokens=n_tokens, temp=0.0)
            found.append(n_tokens / (time.perf_counter() - started))
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("-n", type=int, default=12, dest="n_tokens")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    n_cores = usable_cores()
    print("| busy loops | threads | tokens/s |\n| ---: | ---: | --- |")
    for n_loops in range(n_cores + 1):
        with busy(n_loops):
            for threads in range(n_cores, max(n_cores - 2, 0), -1):
                found = rates(given.target, threads, given.n_tokens, given.repeat)
                print(f"| {n_loops} | {threads} | {', '.join(f'{rate:.1f}' for rate in found)} |", flush=True)


if __name__ == "__main__":
    main()
