"""Time that specrun itself spends on a token, outside llama.cpp's passes.

    python scripts/bench_overhead.py passes [--passes N] [--vocab N]
    python scripts/bench_overhead.py grammar
    python scripts/bench_overhead.py plain TARGET.gguf [--temps 0,0.8] [-n 256] [--rounds 12] [-t THREADS]

`passes`: at a vocabulary of 151,936 tokens. Target and draft are one synthetic GGUF, made on the spot: a bigram model,
in which every token has one likely successor (probability about 0.7) and the rest is noise, so that trees grow as deep
as with a real pair. It runs through the real llama.cpp and the real engine; everything but the passes themselves
counts: sampling, noise, tree growth, acceptance, KV bookkeeping, batches, text. Prints the median and the range over
passes, in milliseconds.

`grammar`: milliseconds to sample a token with and without a grammar, for a small and a large vocabulary. The small one
is the embedded pair's; the large one has words of Python's standard library beside it, up to 152,064 tokens. Logits are
random, with the text's next token the likeliest by 3 nats, and the text is one that a JSON schema allows.

`plain`: plain decoding beside llama.cpp's, for models so small that our own work between passes shows.
llama-completion, which is built once (scripts/peers.py), and specrun with speculation off continue the same prompt in
turn, each in a process of its own. Prints the medians of what a token takes with each, of specrun's own work in it, and
of the ratio of two runs in turn, with its quartiles. The pass over the prompt is left out.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import gguf
import numpy as np
from other_vocabularies import TOKENS, with_more_tokens
from peer_tools import build, tools
from peer_tools.running import Runner
from peer_tools.tools import Job

from specrun.bench import shipped
from specrun.catalog import embedded
from specrun.constraints.json_schema import schema_to_gbnf
from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.hardware.cpu import usable_cores
from specrun.llama import DraftContext, LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.draft_tokens import SameTokens
from specrun.llama.grammar import Grammar
from specrun.llama_settings import LlamaSettings
from specrun.sampling import Sampler, SamplingParameters
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
SAMPLINGS = [
    ("greedy", SamplingParameters(temperature=0)),
    ("T=0.8, top-k 40, top-p 0.95, min-p 0.05", SamplingParameters(temperature=0.8)),
    ("T=0.8, no filter", SamplingParameters(temperature=0.8, top_k=0, top_p=1, min_p=0)),
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "sizes": {"type": "array", "items": {"type": "integer", "maximum": 64}},
        "doc": {"type": "string"},
        "weight": {"type": "number"},
    },
}
TEXT = '{"name": "hello", "sizes": [12, 7, 64], "doc": "reads a file and closes it", "weight": 0.5}'
LARGE = 152_064
GRAMMAR_SAMPLINGS = {
    "greedy": SamplingParameters(temperature=0),
    "default filters": SamplingParameters(),
    "no filters": SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
}
ROUNDS = 5
CTX_SIZE = 2048


# --- passes -----------------------------------------------------------------------------------------------------------


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


def passes(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bigram.gguf"
        started = time.perf_counter()
        write_bigram_model(path, asked.vocab)
        print(f"synthetic model, {asked.vocab} tokens of vocabulary, made in {time.perf_counter() - started:.0f} s")
        print(f"{'plan':<28}{'sampling':<42}{'median ms':>10}{'min':>8}{'max':>8}{'tokens a pass':>15}")
        with LlamaModel(path) as model:
            for name, plan in CASES:
                for label, sampling in SAMPLINGS:
                    times, accepted = measure(model, plan, sampling, asked.passes)
                    print(
                        f"{name:<28}{label:<42}{statistics.median(times):>10.2f}"
                        f"{min(times):>8.2f}{max(times):>8.2f}{accepted:>15.2f}"
                    )


# --- grammars ---------------------------------------------------------------------------------------------------------


def milliseconds(
    tokens: list[int], parameters: SamplingParameters, n_vocab: int, grammar: Grammar | None
) -> np.ndarray:
    """float64[len(tokens)]: the least of ROUNDS, each with a text of which every place is new to the grammar."""
    sampler = Sampler(parameters, n_vocab, grammar)
    best = np.full(len(tokens), np.inf)
    for _ in range(ROUNDS):
        if grammar:
            grammar.forget()
        rng = np.random.default_rng(0)
        for i, token in enumerate(tokens):
            logits = (2.5 * rng.standard_normal(n_vocab)).astype(np.float32)
            logits[token] = logits.max() + 3
            recent = sampler.recent(tokens[:i])
            started = time.perf_counter()
            sampler.sample(logits, i, recent)
            best[i] = min(best[i], 1e3 * (time.perf_counter() - started))
    return best


def large_vocabulary(path: Path) -> Path:
    """The embedded draft with more tokens: words."""
    known = gguf.GGUFReader(embedded.DRAFT).fields[TOKENS].contents()
    seen = set(known)
    added = list(islice((word for word in words() if word not in seen), LARGE - len(known)))
    return with_more_tokens(embedded.DRAFT, path, added, gguf.TokenType.NORMAL)


def words() -> Iterator[str]:
    """The library's words, commonest first, a blank written as the tokenizer writes it; then made-up ones."""
    counts: Counter[str] = Counter()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        counts.update(re.findall(r" ?[A-Za-z]+| ?[!-/:-@]+", file.read_text(encoding="utf-8")))
    yield from (word.replace(" ", "Ġ") for word, _ in counts.most_common())
    yield from (f"Ġw{number}" for number in count())


def grammar(_: argparse.Namespace) -> None:
    print("| vocabulary | | no grammar | JSON schema |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for path in (embedded.TARGET, large_vocabulary(Path(folder) / "large.gguf")):
            with LlamaModel(path) as model, Grammar(schema_to_gbnf(SCHEMA), model) as schema:
                tokens = model.tokenize(TEXT, add_special=False)
                for name, parameters in GRAMMAR_SAMPLINGS.items():
                    plain = milliseconds(tokens, parameters, model.n_vocab, None)
                    by_schema = milliseconds(tokens, parameters, model.n_vocab, schema)
                    ours = f"{by_schema.mean():.2f} ({by_schema.max():.2f})"
                    print(f"| {model.n_vocab:,} | {name} | {plain.mean():.2f} | {ours} |")


# --- plain decoding ---------------------------------------------------------------------------------------------------


def ours(job: Job, prompt: str) -> tuple[float, float]:
    """Milliseconds of a token, and of specrun's own work in it."""
    command = [sys.executable, "-m", "specrun", "generate", "--target", str(job.target), "--draft", "none", "--raw"]
    command += ["--speculate", "off", "--temp", str(job.temperature), "--seed", str(job.seed), "--json"]
    command += ["-n", str(job.max_tokens), "--ctx-size", str(job.ctx_size), "--threads", str(job.threads), prompt]
    done = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    return 1e3 * done["seconds"] / done["passes"], done["ms_per_pass"]["other"]


def plain(asked: argparse.Namespace) -> None:
    programs = build.programs(build.default_folder(), [tools.COMPLETION], usable_cores())
    prompt = shipped(("prose",))[0].text
    print("| T | llama.cpp, ms a token | specrun, ms a token | its own work | specrun's rate, times llama.cpp's |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for temperature in map(float, asked.temps.split(",")):
        job = Job(asked.target, asked.target, asked.n, temperature, 3, asked.threads, CTX_SIZE, repack=True)
        theirs, mine, work = [], [], []
        with tempfile.TemporaryDirectory() as folder:
            runner = Runner(programs, job, Path(folder))
            for _ in range(asked.rounds):
                theirs.append(1e3 / runner.run(tools.PLAIN, [prompt]).rate)
                whole, own = ours(job, prompt)
                mine.append(whole)
                work.append(own)
        low, middle, high = statistics.quantiles([b / a for a, b in zip(mine, theirs, strict=True)], n=4)
        medians = " | ".join(f"{statistics.median(values):.2f}" for values in (theirs, mine, work))
        print(f"| {temperature:g} | {medians} | {middle:.2f} ({low:.2f} to {high:.2f}) |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    of_passes, of_grammar, of_plain = (parts.add_parser(name) for name in ("passes", "grammar", "plain"))
    of_passes.set_defaults(run=passes)
    of_passes.add_argument("--passes", type=int, default=40)
    of_passes.add_argument("--vocab", type=int, default=151_936)
    of_grammar.set_defaults(run=grammar)
    of_plain.set_defaults(run=plain)
    of_plain.add_argument("target", type=Path)
    of_plain.add_argument("--temps", default="0,0.8", metavar="LIST")
    of_plain.add_argument("-n", type=int, default=256, metavar="N", help="tokens of a text")
    of_plain.add_argument("--rounds", type=int, default=12, metavar="N")
    of_plain.add_argument("-t", "--threads", type=int, default=usable_cores(), metavar="N")
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
