"""Whether a token's logits are the same bits in a pass of any size, and what each kind of KV cache costs.

    python scripts/bench_invariance.py [MODEL.gguf] [--threads N] [--repack]
    python scripts/bench_invariance.py --types [q4_k_m,f16,...] [--threads N]

Decodes the same 128 tokens one by one and in passes of n, after prompts of several lengths, and prints the largest
difference of any logit against one by one, and the median milliseconds of a pass. The text is argparse.py of this
Python. Flash attention is on. --repack lets llama.cpp re-order weights for this CPU, as it does by default.

--types prints, for each type of weights, the sizes of passes that give a token the same bits in logits and KV cache.
The model is the embedded target, widened to rows that K-quants can have. A class is in bold if padded passes over one
token were the same as padded passes over chains and trees; the first one is what --exact takes for this small model.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from specrun.catalog import embedded
from specrun.hardware.cpu import usable_cores
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.invariance import Comparison
from specrun.llama_settings import CacheType, LlamaSettings
from tests.models import wide_target

SIZES = (1, 2, 4, 8, 16, 32, 63, 64, 128)
N_MEASURED = 128
PROMPT_LENGTHS = (0, 300, 800)
TYPES = "q8_0,q4_0,iq4_nl,iq4_xs,q3_k_m,q4_k_m,q5_k_m,q6_k,mxfp4,bf16,f16"
KV_TYPES: tuple[tuple[CacheType, CacheType], ...] = (("f16", "f16"), ("f16", "bf16"))


def decode(
    model: LlamaModel,
    tokens: list[int],
    n_prompt: int,
    size: int,
    kv_types: tuple[CacheType, CacheType],
    n_threads: int,
) -> tuple[np.ndarray, float]:
    """Logits float32[N_MEASURED, n_vocab] after the prompt, decoded `size` at a time, and ms per full pass."""
    settings = LlamaSettings(threads=n_threads, type_k=kv_types[0], type_v=kv_types[1])
    config = ContextConfig(n_ctx=2048, n_seq_max=1, n_batch=256, n_outputs=256, settings=settings)
    rows, times = [], []
    with LlamaContext(model, config) as context:
        for start in range(0, n_prompt, 100):
            chunk = tokens[start : min(start + 100, n_prompt)]
            context.decode(committed_tokens(chunk, start, 1, n_outputs=0))
        end = n_prompt + N_MEASURED
        for start in range(n_prompt, end, size):
            batch = committed_tokens(tokens[start : min(start + size, end)], start, 1, n_outputs=1)
            batch.outputs[:] = True
            started = time.perf_counter()
            rows.append(context.decode(batch).copy())
            if len(batch) == size:
                times.append((time.perf_counter() - started) * 1e3)
    return np.concatenate(rows), statistics.median(times)


def print_classes(kinds: list[str], n_threads: int) -> None:
    """A Markdown table of the classes of sizes for each type of weights, as they are in the file and re-ordered."""
    print("| weights | sizes with the same bits | re-ordered weights |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            cells = [classes(wide_target(Path(folder), kind), repack, n_threads) for repack in (False, True)]
            print(f"| {kind.upper()} | {' | '.join(cells)} |", flush=True)


def classes(path: Path, repack: bool, n_threads: int) -> str:
    """The classes of more than one size; those are bold that hold as they will be used."""
    settings = LlamaSettings(threads=n_threads, type_k="f16", type_v="bf16")
    config = ContextConfig(n_ctx=1024, n_seq_max=2, n_batch=512, n_outputs=64, settings=settings)
    with LlamaModel(path, LlamaSettings(repack=repack)) as model, LlamaContext(model, config) as context:
        comparison = Comparison(
            TargetContext(context), model.tokenize(inspect.getsource(argparse), add_special=False), 64
        )
        found = [sizes for sizes in comparison.survey().classes if not sizes.is_single]
        return "; ".join(f"**{sizes}**" if comparison.holds(sizes) else str(sizes) for sizes in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=embedded.TARGET)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repack", action="store_true")
    parser.add_argument("--types", nargs="?", const=TYPES, help=f"compare types of weights (default: {TYPES})")
    arguments = parser.parse_args()
    if arguments.types:
        print_classes(arguments.types.split(","), arguments.threads)
        return
    with LlamaModel(arguments.model, LlamaSettings(repack=arguments.repack)) as model:
        tokens = model.tokenize(inspect.getsource(argparse), add_special=False)
        print(f"{'prompt':>6} {'K, V':<10} {'':<16}" + "".join(f"{f'n={size}':>9}" for size in SIZES))
        for n_prompt in PROMPT_LENGTHS:
            for kv_types in KV_TYPES:
                results = [decode(model, tokens, n_prompt, size, kv_types, arguments.threads) for size in SIZES]
                alone = results[0][0]
                head = f"{n_prompt:>6} {', '.join(kv_types):<10} "
                print(f"{head}{'difference':<16}" + "".join(f"{np.abs(r - alone).max():>9.2g}" for r, _ in results))
                print(f"{head}{'ms a pass':<16}" + "".join(f"{ms:>9.2f}" for _, ms in results), flush=True)


if __name__ == "__main__":
    main()
