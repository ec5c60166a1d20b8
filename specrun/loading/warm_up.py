"""Passes that nobody waits for, made while a pair is loaded: kernels are loaded, and the draft's passes timed.

Kernels are loaded into a GPU when they are first called, and which ones a pass calls depends on its tokens. On an H200
the first draft passes of their sizes took several times as long as later ones: `auto` took that for what drafting
costs, and turned it off. And what a draft pass takes cannot be guessed from the sizes of the files: such a guess kept
`auto` from ever asking a draft that takes a hundredth of a slow target's pass.
"""

from __future__ import annotations

from specrun import clock
from specrun.llama.batch import committed_tokens
from specrun.llama.context import LlamaContext
from specrun.speculation.planning.costs import CostTable, PassTime

# Tokens of passes, the most usual first. Kernels that multiply by quantized weights are made for each size up to 8 and
# for multiples of 8; those of attention for powers of two.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 24, 48)
_TIMES = 3  # a pass that was made twice is replayed as a whole on a GPU from then on, which the third prepares
_SECONDS = 0.3  # after which the rest is left to the texts
_TIMED = (1, 8)  # tokens of the draft passes that are timed
_TOKEN = 0  # any token of the vocabulary


def warm_up(context: LlamaContext) -> None:
    """Make passes of usual sizes as far as a fraction of a second suffices, and leave the cache empty."""
    deadline = clock.now() + _SECONDS
    for n in _SIZES:
        if n > _most(context):
            continue
        for _ in range(_TIMES):
            _pass(context, n)
            if clock.now() > deadline:
                return


def timed(context: LlamaContext) -> CostTable:
    """Milliseconds of a pass over one token and over a few, each the least of some. The cache is empty again.

    A program that holds a core for a moment makes one pass many times as slow as it is.
    """
    times = []
    for n in _TIMED:
        if n <= _most(context):
            _pass(context, n)  # touches memory and loads kernels
            times.append(PassTime(n, 0, min(_pass(context, n) for _ in range(_TIMES))))
    return CostTable(times)


def _pass(context: LlamaContext, n: int) -> float:
    """The milliseconds of a pass over `n` tokens."""
    started = clock.now()
    context.decode(committed_tokens([_TOKEN] * n, 0, 1, n))
    ms = 1e3 * (clock.now() - started)
    context.remove(0, 0)
    return ms


def _most(context: LlamaContext) -> int:
    return min(context.config.n_batch, context.config.n_outputs, context.config.n_ctx)
