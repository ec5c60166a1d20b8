"""What attention costs with and without llama.cpp's flash attention on this CPU, by the shape of the heads.

    python scripts/bench_attention.py [-t THREADS] [--repeat N]

Prints a Markdown table: milliseconds that one layer's attention takes of a prompt of 500 tokens and an answer of 256,
one half of it written one by one and the other half in small trees, the median of N trials; and what an untuned target
with such heads does (specrun/loading/default_settings.py).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from specrun import clock
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.llama import LlamaModel
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.facts.tiny_model import write_dense
from specrun.llama_settings import LlamaSettings
from specrun.loading.default_settings import NARROW
from specrun.loading.trial import ANSWER, PROMPT
from specrun.speculation.planning.pass_sizes import tokens_of

MODELS = {  # heads, those of K and V, and the numbers of one
    "Llama 3.1 8B": (32, 8, 128),
    "Qwen2.5 7B": (28, 4, 128),
    "Qwen2.5 0.5B": (14, 2, 64),
    "the 1.1 B target of bench_headline.py": (64, 8, 32),
}
CONTEXTS = (64, 768)  # tokens; llama.cpp's attention kernels for long contexts are at work from 512 cells on
TREES = (1, 4)  # tokens of the timed passes
PROMPT_PASS = 512  # tokens of a pass over the prompt
ROUNDS = 7
NARROW_LAYER = 256  # width of a layer whose matrices are not what is timed


def attention_ms(heads: tuple[int, int, int], threads: int | None) -> dict[str, float]:
    """Milliseconds that one layer's attention takes of a prompt and an answer, `with` flash attention and `without`."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = write_dense(Path(folder) / "layer.gguf", heads, NARROW_LAYER, NARROW_LAYER, 32, 1, ["F16", "F16"])
        contexts = {}
        for name in ("with", "without"):
            flash_attn: Literal["on", "off"] = "on" if name == "with" else "off"
            settings = LlamaSettings(threads=threads, type_k="f16", type_v="f16", flash_attn=flash_attn)
            config = ContextConfig(
                CONTEXTS[-1] + max(TREES), 1, n_batch=PROMPT_PASS, n_outputs=max(TREES), settings=settings
            )
            model = stack.enter_context(LlamaModel(path, settings))
            contexts[name] = stack.enter_context(LlamaContext(model, config))
            read(contexts[name], 0, CONTEXTS[0])
        few = passes(contexts, CONTEXTS[0])
        far = {name: read(context, *CONTEXTS) for name, context in contexts.items()}
        many = passes(contexts, CONTEXTS[1])
    return {
        name: PROMPT * far[name] / (CONTEXTS[1] - CONTEXTS[0])
        + ANSWER * statistics.mean((few[name, n] + many[name, n]) / 2 / tokens_of(n) for n in TREES)
        for name in contexts
    }


def read(context: LlamaContext, start: int, end: int) -> float:
    """Milliseconds of a prompt up to `end` where `start` tokens lie already."""
    started = clock.now()
    for first in range(start, end, PROMPT_PASS):
        context.decode(committed_tokens([1] * min(PROMPT_PASS, end - first), first, 1, n_outputs=0))
    return (clock.now() - started) * 1e3


def passes(contexts: dict[str, LlamaContext], start: int) -> dict[tuple[str, int], float]:
    """Milliseconds of passes after `start` tokens, by name and size. All take turns: the machine's speed changes."""
    taken: dict[tuple[str, int], list[float]] = {(name, n): [] for n in TREES for name in contexts}
    for _ in range(ROUNDS):
        for (name, n), ms in taken.items():
            started = clock.now()
            contexts[name].decode(committed_tokens([1] * n, start, 1, n_outputs=n))
            ms.append((clock.now() - started) * 1e3)
            contexts[name].remove(ALL_SEQUENCES, start)
    return {key: statistics.median(ms) for key, ms in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", "-t", type=int, default=None, metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="trials of each shape")
    options = parser.parse_args()
    models = dict(MODELS)
    if embedded_draft := GgufFile.read(embedded.DRAFT).heads:
        models["the embedded draft"] = embedded_draft
    print("| heads of | heads, of K and V, size | with, ms | without, ms | without / with | flash attention |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for name, heads in models.items():
        trials = [attention_ms(heads, options.threads) for _ in range(options.repeat)]
        ms = {kind: statistics.median(trial[kind] for trial in trials) for kind in trials[0]}
        chosen = "off" if heads[-1] <= NARROW else "on"
        print(
            f"| {name} | {', '.join(map(str, heads))} | {ms['with']:.0f} | {ms['without']:.0f} "
            f"| {ms['without'] / ms['with']:.2f} | {chosen} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
