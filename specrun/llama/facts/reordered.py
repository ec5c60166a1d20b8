"""Whether llama.cpp can compute with weights that it re-orders for this CPU, tried in a process of its own.

On processors with AMX it re-orders weights for kernels that set up the processor's tiles first. GCC up to 11.4, 12.3
and 13.2 leaves out what these kernels write into memory for that (https://gcc.gnu.org/PR114098), so that the first pass
ends the process, whatever the model is (llama.cpp's issue 20824). Other programs on the same build end there, too.
"""

from __future__ import annotations

import logging
from typing import Any

from specrun.errors import CrashError
from specrun.hardware.cpu import read_flags
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.facts import tiny_model
from specrun.llama_settings import LlamaSettings
from specrun.processes import child_process

# For CMake: re-ordered weights are computed without AMX.
WITHOUT_AMX = ("-DCMAKE_C_FLAGS=-mno-amx-int8", "-DCMAKE_CXX_FLAGS=-mno-amx-int8")


def check(_settings: LlamaSettings) -> str | None:
    """Let a process of its own make a pass over re-ordered weights, where the processor has AMX."""
    if "amx_int8" not in read_flags():
        return None
    debug = logging.getLogger("specrun.llama").isEnabledFor(logging.DEBUG)
    try:
        child_process.answer(__name__, {}, "a pass over re-ordered weights", lambda: None, debug)
    except CrashError:
        return "llama.cpp's kernels for AMX end the process, as compilers before GCC 12.4, 13.3 and 14 make them"
    return None


def serve(request: str) -> None:
    """In the child: make the pass."""

    def run(_given: dict[str, Any]) -> dict[str, Any]:
        config = ContextConfig(256, n_seq_max=1, n_batch=8, n_outputs=1, settings=LlamaSettings(threads=1, repack=True))
        with tiny_model.loaded(config.settings, "Q4_K") as model, LlamaContext(model, config) as context:
            context.decode(committed_tokens([1, 2, 3, 4], 0, 1, 1))
        return {}

    child_process.reply(request, run, failures=Exception)  # a full disk is no fault of the kernels
