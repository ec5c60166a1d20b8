"""Whether attention on this CPU is faster with llama.cpp's flash attention, measured on one layer of attention alone.

llama.cpp's flash attention goes over the KV cache once for every token of a small pass, while plain attention
multiplies whole matrices, so that all nodes of a tree share the reading. Which is faster depends on the CPU, the shape
of the heads and the length of the text. What is compared is a prompt of PROMPT tokens and an answer of ANSWER tokens
behind it, one half of them written one by one and the other half in small trees.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.engine.layer_trial import Heads, pass_ms, result_path
from specrun.errors import LlamaError
from specrun.llama import LlamaModel
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings
from specrun.locations import recall, remember
from specrun.speculation.planning.pass_sizes import tokens_of

PROMPT, ANSWER = 500, 256  # tokens of the prompt that is read and of the answer that is written; chosen by hand
CONTEXTS = (64, 768)  # tokens; llama.cpp's attention kernels for long contexts are at work from 512 cells on
WITH = LlamaSettings(type_k="f16", type_v="f16", flash_attn="on")
WITHOUT = LlamaSettings(type_k="f16", type_v="f16", flash_attn="off")
_SIZES = (1, 4)  # tokens of the timed passes
_ROUNDS = 7
_CLEARLY = 0.95  # share of the time with flash attention that is clearly less
_WIDTH = 256  # of the layer's matrices, which are not what is timed; a multiple of every quantization's block
_BATCH = 512  # tokens of a pass over the prompt


def is_faster_without(file: GgufFile, threads: int | None) -> bool:
    """Whether this CPU is clearly faster without flash attention, by an earlier trial or one made now.

    The trial takes a fraction of a second, and its result is kept in a file, because the text may depend on the choice.
    False for models with another kind of attention, for which no trial is made.

    threads: of a pass; None for the default.
    """
    heads = Heads.of(file)
    if heads is None:
        return False
    path = result_path("attention", {"heads": asdict(heads), "threads": threads})
    if (known := recall(path, lambda value: bool(value["without"]))) is not None:
        return known
    try:
        ms = measured(heads, threads)
    except (LlamaError, OSError):
        return False  # llama.cpp does not run such heads, or memory or disk are full: nothing is known
    without = prefers_without(ms)
    remember(path, {"heads": asdict(heads), "ms": ms, "without": without})
    return without


def measured(heads: Heads, threads: int | None) -> dict[str, float]:
    """Milliseconds that one layer's attention takes of a prompt and an answer, `with` flash attention and `without`.

    Raises LlamaError if llama.cpp cannot run a model with such heads.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = heads.write(Path(folder) / "attention.gguf", _WIDTH, _WIDTH, "F16")
        contexts = {}
        for name, kind in {"with": WITH, "without": WITHOUT}.items():
            settings = LlamaSettings(threads=threads).over(kind)
            model = stack.enter_context(LlamaModel(path, settings))
            config = ContextConfig(
                n_ctx=CONTEXTS[-1] + max(_SIZES), n_seq_max=1, n_batch=_BATCH, n_outputs=max(_SIZES), settings=settings
            )
            contexts[name] = stack.enter_context(LlamaContext(model, config))
        near = _timed(contexts, 0, CONTEXTS[0])
        far = _timed(contexts, CONTEXTS[0], CONTEXTS[1])
        return {name: _total_ms(near[name], far[name]) for name in contexts}


def prefers_without(ms: Mapping[str, float]) -> bool:
    """Whether a trial's milliseconds are clearly fewer without flash attention. ms: as `measured` returns them."""
    return ms["without"] < _CLEARLY * ms["with"]


def _total_ms(near: Mapping[int, float], far: Mapping[int, float]) -> float:
    """Of a prompt and an answer. near, far: milliseconds of passes by size, and at 0 of the prompt up to there."""
    prompt = PROMPT * far[0] / (CONTEXTS[1] - CONTEXTS[0])
    rates = [(near[n] + far[n]) / 2 / tokens_of(n) for n in _SIZES]
    return prompt + ANSWER * statistics.mean(rates)


def _timed(contexts: Mapping[str, LlamaContext], start: int, end: int) -> dict[str, dict[int, float]]:
    """Read a prompt up to `end` where `start` tokens lie already, and run passes of each size behind it, in turn."""
    found: dict[str, dict[int, float]] = {}
    for name, context in contexts.items():
        started = time.perf_counter()
        for first in range(start, end, _BATCH):
            context.decode(committed_tokens([1] * min(_BATCH, end - first), first, 1, n_outputs=0))
        found[name] = {0: (time.perf_counter() - started) * 1e3}
    ms: dict[tuple[str, int], list[float]] = {(name, n): [] for name in contexts for n in _SIZES}
    for _ in range(_ROUNDS):
        for (name, n), taken in ms.items():
            taken.append(pass_ms(contexts[name], n, start=end, n_outputs=n))
    for (name, n), taken in ms.items():
        found[name][n] = statistics.median(taken)
    return found
