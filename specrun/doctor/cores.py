"""Whether other processes take the cores that llama.cpp's threads need."""

from __future__ import annotations

import time

from specrun.doctor.finding import Finding
from specrun.hardware.cpu import usable_cores
from specrun.hardware.other_load import LoadWatch, OtherLoad

_SECONDS = 0.5


def watched() -> OtherLoad:
    """What others take during half a second, in which this process does nothing."""
    watch = LoadWatch(with_names=True)
    time.sleep(_SECONDS)
    return watch.so_far()


def other_load(load: OtherLoad, wanted: int | None = None) -> Finding:
    """Whether as many threads as wanted find cores of their own. wanted: None is what specrun takes by itself."""
    wanted = wanted or usable_cores()
    by = f" ({', '.join(load.processes)})" if load.processes else ""
    detail = f"other programs hold {load.cores:.1f} of {load.n_cores} cores{by}"
    free = load.threads_beside(wanted)
    if free == wanted and load.cores < load.n_cores - 0.5:
        return Finding("other load", "ok", detail)
    threads = "1 thread of llama.cpp waits" if wanted == 1 else f"{wanted} threads of llama.cpp wait for each other"
    fix = "end them" + (f", or give `--threads {free}`" if free < wanted else "")
    return Finding("other load", "warn", f"{detail}, so that {threads}", fix)
