"""Time that specrun itself spends on a step, outside llama.cpp's passes, at a vocabulary of 151,936 tokens.

    python scripts/bench_overhead.py [--passes N] [--vocab N]

Target and draft are one synthetic GGUF, made on the spot: a bigram model, in which every token has one likely
successor (probability about 0.7) and the rest is noise, so that trees grow as deep as with a real pair. It runs
through the real llama.cpp and the real engine; everything but the passes themselves counts: sampling, noise, tree
growth, acceptance, KV bookkeeping, batches, text. Prints the median and the range over passes, in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np

from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.llama import DraftContext, LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.draft_tokens import SameTokens
from specrun.llama_settings import LlamaSettings
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan

N_EMBD = 64
# Logit of the likely successor over the spread of the others: 8 * SCALE against SCALE.
SCALE = 1.8

CASES = [
    ("tree of 64 nodes, 12 deep", SPECEXEC.plan(64, 12)),
    ("chain of 4", CHAIN.plan(depth=4)),
    ("off", OFF.plan()),
]
SAMPLING = [
    ("greedy", SamplingParameters(temperature=0)),
    ("T=0.8, top-k 40, top-p 0.95, min-p 0.05", SamplingParameters(temperature=0.8)),
    ("T=0.8, no filter", SamplingParameters(temperature=0.8, top_k=0, top_p=1, min_p=0)),
]


def write_bigram_model(path: Path, n_vocab: int, seed: int = 0) -> None:
    """A one-layer llama GGUF (float16) whose layer adds nothing, so that logits depend on the last token alone."""
    rng = np.random.default_rng(seed)
    embedding = rng.standard_normal((n_vocab, N_EMBD), np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(n_vocab)
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // 2)
    writer.add_tokenizer_model("none")

    def add(name: str, array: np.ndarray) -> None:
        writer.add_tensor(name, array.astype(np.float32 if array.ndim == 1 else np.float16))

    add("token_embd.weight", embedding)
    add("output_norm.weight", np.ones(N_EMBD))
    add("output.weight", SCALE * embedding[rng.permutation(n_vocab)])
    for name, rows, columns in [
        ("attn_q", N_EMBD, N_EMBD),
        ("attn_k", N_EMBD // 2, N_EMBD),
        ("attn_v", N_EMBD // 2, N_EMBD),
        ("attn_output", N_EMBD, N_EMBD),
        ("ffn_gate", 32, N_EMBD),
        ("ffn_up", 32, N_EMBD),
        ("ffn_down", N_EMBD, 32),
    ]:
        add(f"blk.0.{name}.weight", np.zeros((rows, columns)))
    add("blk.0.attn_norm.weight", np.ones(N_EMBD))
    add("blk.0.ffn_norm.weight", np.ones(N_EMBD))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure(model: LlamaModel, plan: Plan, sampling: SamplingParameters, n_passes: int) -> tuple[list[float], float]:
    """Milliseconds outside llama.cpp of every pass but the first two, and the mean accepted length."""
    settings = LlamaSettings(type_v="bf16")
    config = ContextConfig(n_ctx=4096, n_seq_max=64, n_batch=512, n_outputs=64, settings=settings)
    with LlamaContext(model, config) as target, LlamaContext(model, config) as draft:
        engine = Engine(TargetContext(target), DraftContext(draft, SameTokens(model.n_vocab)), ctx_size=3072)
        outside, before = [], 0.0
        generation = Generation(engine, Request(list(range(1, 33)), sampling), FixedPlan(plan))
        for _ in write_alone(generation):
            now = generation.statistics.other_seconds
            outside.append((now - before) * 1e3)
            before = now
            if len(outside) == n_passes + 2:
                break
        return outside[2:], generation.statistics.tokens_per_pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--vocab", type=int, default=151_936)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bigram.gguf"
        started = time.perf_counter()
        write_bigram_model(path, arguments.vocab)
        print(f"synthetic model, {arguments.vocab} tokens of vocabulary, made in {time.perf_counter() - started:.0f} s")
        print(f"{'plan':<28}{'sampling':<42}{'median ms':>10}{'min':>8}{'max':>8}{'tokens a pass':>15}")
        with LlamaModel(path) as model:
            for name, plan in CASES:
                for label, sampling in SAMPLING:
                    times, accepted = measure(model, plan, sampling, arguments.passes)
                    print(
                        f"{name:<28}{label:<42}{statistics.median(times):>10.2f}"
                        f"{min(times):>8.2f}{max(times):>8.2f}{accepted:>15.2f}"
                    )


if __name__ == "__main__":
    main()
