"""Whether attention on this CPU is faster with llama.cpp's flash attention, measured on one layer of attention alone.

llama.cpp's flash attention goes over the KV cache once for every token of a small pass, while plain attention
multiplies whole matrices, so that all nodes of a tree share the reading. Which is faster depends on the CPU, the shape
of the heads and the length of the text. What is compared is a prompt of PROMPT tokens and an answer of ANSWER tokens
behind it, one half of them written one by one and the other half in small trees.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict

from specrun.catalog.gguf_file import GgufFile
from specrun.engine import layer_trial, trial
from specrun.engine.layer_trial import Heads
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings
from specrun.speculation.planning.pass_sizes import tokens_of

PROMPT, ANSWER = 500, 256  # tokens of the prompt that is read and of the answer that is written; chosen by hand
CONTEXTS = (64, 768)  # tokens; llama.cpp's attention kernels for long contexts are at work from 512 cells on
WITH = LlamaSettings(type_k="f16", type_v="f16", flash_attn="on")
WITHOUT = LlamaSettings(type_k="f16", type_v="f16", flash_attn="off")
_SIZES = (1, 4)  # tokens of the timed passes
_ROUNDS = 7
_WIDTH = 256  # of the layer's matrices, which are not what is timed; a multiple of every quantization's block
_BATCH = 512  # tokens of a pass over the prompt


def is_faster_without(file: GgufFile, threads: int | None) -> bool:
    """Whether this CPU is clearly faster without flash attention, by an earlier trial or one made now.

    The trial takes a fraction of a second. False for models with another kind of attention, for which no trial is made.
    threads: of a pass; None for the default.
    """
    heads = Heads.of(file)
    if heads is None:
        return False
    subject = {"heads": asdict(heads), "threads": threads}
    return bool(trial.once("attention", subject, "without", lambda: measured(heads, threads), prefers_without))


def measured(heads: Heads, threads: int | None) -> dict[str, float]:
    """Milliseconds that one layer's attention takes of a prompt and an answer, `with` flash attention and `without`.

    Raises LlamaError if llama.cpp cannot run a model with such heads.
    """
    longest = CONTEXTS[-1] + max(_SIZES)
    config = ContextConfig(longest, n_seq_max=1, n_batch=_BATCH, n_outputs=max(_SIZES))
    ways = {name: LlamaSettings(threads=threads).over(way) for name, way in {"with": WITH, "without": WITHOUT}.items()}
    with layer_trial.opened(heads, _WIDTH, _WIDTH, "F16", config, ways) as contexts:
        near = _timed(contexts, 0, CONTEXTS[0])
        far = _timed(contexts, CONTEXTS[0], CONTEXTS[1])
        return {name: _total_ms(near[name], far[name]) for name in contexts}


def prefers_without(ms: Mapping[str, float]) -> bool:
    """Whether a trial's milliseconds are clearly fewer without flash attention. ms: as `measured` returns them."""
    return trial.is_faster(ms["without"], ms["with"], trial.CLEARLY_AT_ONCE)


def _total_ms(near: Mapping[int, float], far: Mapping[int, float]) -> float:
    """Milliseconds of a prompt and an answer. near, far: of passes by size, and at 0 of the prompt up to there."""
    prompt = PROMPT * far[0] / (CONTEXTS[1] - CONTEXTS[0])
    return prompt + ANSWER * statistics.mean((near[n] + far[n]) / 2 / tokens_of(n) for n in _SIZES)


def _timed(contexts: Mapping[str, LlamaContext], start: int, end: int) -> dict[str, dict[int, float]]:
    """Read a prompt up to `end` where `start` tokens lie already, and run passes of each size behind it, in turn."""
    prompt_ms = {}
    for name, context in contexts.items():
        started = time.perf_counter()
        for first in range(start, end, _BATCH):
            context.decode(committed_tokens([1] * min(_BATCH, end - first), first, 1, n_outputs=0))
        prompt_ms[name] = (time.perf_counter() - started) * 1e3
    by_size = layer_trial.medians(contexts, _SIZES, _ROUNDS, end, outputs=True)
    return {name: {0: prompt_ms[name], **by_size[name]} for name in contexts}
