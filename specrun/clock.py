"""The clock by which passes are timed, and everything that follows from these times is decided.

Everything calls `clock.now()`, looked up when it is called, so that a simulated machine can replace it
(`scripts/bench_machines.py`, and tests): then the time that a pass takes is that machine's.
"""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since some moment, never falling."""
    return time.perf_counter()
