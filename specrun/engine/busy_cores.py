"""Says when other programs hold the cores that the threads of a model need.

The number of threads stays as it is: with K and V both in f16, as most targets have them, llama.cpp sums the attention
of a plain pass in as many parts as there are threads, so that the text would depend on what else runs on the machine.
"""

from __future__ import annotations

from specrun.engine.run_options import RunOptions
from specrun.hardware.cpu import usable_cores
from specrun.hardware.other_load import LoadWatch
from specrun.hardware.placement import Placement

_SECONDS = 0.25  # a shorter look says little, because the system counts in steps of 10 ms


def notices(watch: LoadWatch, options: RunOptions, placement: Placement | None) -> list[str]:
    """A sentence for the user if the default number of threads is more than there are free cores; else none.

    watch: made before the model was loaded. options: with the profile, whose threads were chosen on purpose, as the
    user's are. placement: with a target in VRAM the cores compute next to nothing.
    """
    is_decided = options.with_profile.settings.threads is not None
    if is_decided or watch.seconds < _SECONDS or (placement and placement.regime == "in VRAM"):
        return []
    load, wanted = watch.so_far(), usable_cores()
    free = load.threads_beside(wanted)
    if free == wanted:
        return []
    return [
        f"other programs hold {load.cores:.1f} of {load.n_cores} cores, and llama.cpp's {wanted} threads wait for each "
        f"other; `--threads {free}` may be several times as fast (`specrun doctor` names the programs)"
    ]
