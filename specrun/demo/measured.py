"""The profile of the demonstration's pair: measured once, as `specrun tune --quick` does it."""

from __future__ import annotations

from specrun.engine.resolving import identity_of
from specrun.engine.run_options import RunOptions
from specrun.interrupts import InterruptFlag
from specrun.long_run import Run
from specrun.options.machine_options import MachineOptions
from specrun.profiles import lookup, profile_files
from specrun.tuning import unfinished
from specrun.tuning.tune_pair import tune_pair

# llama.cpp's own settings where `specrun tune` would try others, so that the plain text is written as llama.cpp would.
LLAMA_DEFAULTS = MachineOptions(cache_type_k="f16", cache_type_v="f16", flash_attn="auto", repack=True)
_GREEDY = 0.0


def measure_once(options: RunOptions, run: Run) -> None:
    """Keep a profile of the pair, unless there is one. Takes about a minute. Raises KeyboardInterrupt on Ctrl-C."""
    identity = identity_of(options)
    found = lookup.find(identity)
    if found.profile:
        return
    if found.notice and found.is_set_aside:
        run.note(found.notice)
    profile_files.check_folder()
    run.note("measuring this machine once, as `specrun tune --quick` does, for about a minute")
    with InterruptFlag() as interrupted:
        shown = Run(run.display, run.note, interrupted)
        profile, _ = tune_pair(options, identity, "quick", (_GREEDY,), None, True, shown)
    profile_files.save(profile)
    unfinished.delete(profile.fingerprint)
