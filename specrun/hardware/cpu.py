"""The processor."""

from __future__ import annotations

import os

import psutil


def usable_cores() -> int:
    """Physical cores that this process may run on: the thread count at which llama.cpp is usually fastest."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed))
