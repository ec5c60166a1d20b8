"""Passes on a GPU that nobody waits for, made before anything is timed.

Kernels are loaded into a GPU when they are first called, and which ones a pass calls depends on its tokens. On an H200
the first draft passes of their sizes took several times as long as later ones: `auto` took that for what drafting
costs, and turned it off.
"""

from __future__ import annotations

import time

from specrun.llama.batch import committed_tokens
from specrun.llama.context import LlamaContext

# Tokens of passes, the most usual first. Kernels that multiply by quantized weights are made for each size up to 8 and
# for multiples of 8; those of attention for powers of two.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 24, 48)
_TIMES = 3  # a pass that was made twice is replayed as a whole from then on, which the third prepares
_SECONDS = 0.3  # after which the rest is left to the texts


def warm_up(context: LlamaContext) -> None:
    """Make passes of usual sizes as far as a fraction of a second suffices, and leave the cache empty."""
    deadline = time.perf_counter() + _SECONDS
    most = min(context.config.n_batch, context.config.n_outputs, context.config.n_ctx)
    for n in _SIZES:
        if n > most:
            continue
        batch = committed_tokens([0] * n, 0, 1, n)
        for _ in range(_TIMES):
            context.decode(batch)
            context.remove(0, 0)
            if time.perf_counter() > deadline:
                return
