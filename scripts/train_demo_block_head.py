"""Train a DSpark head for the demonstration target and write block-head.gguf.

A DSpark head drafts a block of tokens in one pass. It learns the probabilities that the target gives, on the library's
source code and on texts that the target wrote. All figures printed at the end are measured on the written file, with
library files that neither saw.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch
from demo_pair import (
    block_export,
    block_head,
    block_start,
    block_training,
    drafting,
    export,
    head_export,
    head_teaching,
    measure,
    model,
    tokenizer,
    training,
)
from train_demo_head import LESSON, MEASURED_ONE_IN, MEASURED_WINDOW, STARTING_LESSONS, written_texts
from train_demo_pair import TARGET_SHAPE, VOCABULARY, begin

SHAPE = block_head.BlockShape(
    layers=3,
    width=256,
    heads=8,
    kv_heads=8,
    head_width=32,
    feed_forward=896,
    target_layers=(1, 3, 5, 7),
    vocabulary=VOCABULARY,
    block=8,
    rank=64,
)


def main() -> int:
    """Train, write, measure."""
    options = parse_arguments()
    documents, tokens = begin(options)
    head_export.check_vocabulary(options.target, tokens)
    streams = {
        role: tokenizer.encode_documents(tokens, [d for d in documents if d.role == role])
        for role in ("library", "test", "held-out")
    }
    target = export.load_exported(options.target, model.Llama(TARGET_SHAPE)).requires_grad_(False)
    trained = block_head.BlockHead(SHAPE)
    path: Path = options.measure or options.out / "block-head.gguf"
    if options.measure is None:
        train(options, trained, target, training.Sources(streams["library"], streams["test"]))
        block_export.export(trained, options.target, path)
    held_out = measure.rows_of(streams["held-out"], MEASURED_WINDOW)[::MEASURED_ONE_IN]
    report(path, export.load_exported(path, trained), target, held_out, options)
    return 0


def train(
    options: argparse.Namespace, trained: block_head.BlockHead, target: model.Llama, sources: training.Sources
) -> None:
    """Teach the head what the target says about the library and about its own texts."""
    random = np.random.default_rng(options.seed)
    written = written_texts(options, target, sources)
    read = sources.windows(random, options.read_tokens // LESSON, LESSON)
    texts = torch.cat([*written, read])[torch.from_numpy(random.permutation(len(read) + sum(map(len, written))))]
    lessons = head_teaching.lessons_of(target, texts, SHAPE.target_layers)
    print(f"the target read {texts.numel()} tokens for the head", flush=True)
    few = head_teaching.Lessons(*(part[:STARTING_LESSONS] for part in lessons[:3]), lessons.output)
    explained = block_start.begin(trained, target, few)
    print(f"the linear guess explains {explained:.1%} of the state before the last layer", flush=True)
    n_rows = block_training.train(trained, lessons, options.minutes, options.seed, options.checkpoint)
    print(f"trained on {n_rows} rows, {options.threads} threads, {platform.machine()}, torch {torch.__version__}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line; the defaults are what made the figures of docs/embedded-pair.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-pair"), help="folder for the file (%(default)s)")
    parser.add_argument(
        "--target", type=Path, default=Path("specrun/embedded/target.gguf"), help="the target's file (%(default)s)"
    )
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure this head instead of training one")
    parser.add_argument(
        "--minutes",
        type=float,
        default=33.0,
        help="processor time that the head learns for; 0 writes its start (%(default)s)",
    )
    parser.add_argument(
        "--read-tokens", type=int, default=1_100_000, help="text the target reads for the head (%(default)s)"
    )
    parser.add_argument(
        "--written-tokens", type=int, default=980_000, help="text the target writes for the head (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=7, help="seed of every random choice (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (%(default)s)")
    parser.add_argument(
        "--written", type=Path, metavar="FILE", help="the target's own texts: read from it, or saved there"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="state of the training: gone on from, and saved there"
    )
    return parser.parse_args()


def report(
    path: Path, trained: block_head.BlockHead, target: model.Llama, held_out: torch.Tensor, options: argparse.Namespace
) -> None:
    """Print what the written file does, in PyTorch and in llama.cpp."""
    print(f"\nhead: {trained.parameter_count()} parameters, {trained.shape}")
    print(f"  {path.stat().st_size} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")

    def lessons(texts: torch.Tensor) -> head_teaching.Lessons:
        return head_teaching.lessons_of(target, texts, trained.shape.target_layers)

    print("\nagreement of head and target by row (same most likely token, overlap of the distributions)")
    print_rows("held-out text", block_training.agreement(lessons(held_out), trained))
    prompts = held_out[:, : measure.PROMPT_TOKENS]
    for label, temperature in (("greedy", 0.0), ("T=0.8", measure.SAMPLING_TEMPERATURE)):
        texts = model.generate(target, prompts, measure.CONTINUATION_TOKENS + SHAPE.block, temperature, seed=0)
        rows = block_training.agreement(lessons(texts), trained, first=measure.PROMPT_TOKENS - 1)
        print_rows(f"text the target wrote, {label}", rows)
    print("\nin llama.cpp, on the target's greedy text: how often a row's first choice is right; ms of a block")
    with drafting.opened(options.target, path, options.threads) as engine:
        texts = drafting.written(engine, prompts[::4].tolist(), measure.CONTINUATION_TOKENS)
        right = drafting.right_by_level(engine, texts, measure.PROMPT_TOKENS, trained.shape.block)
        ms = drafting.start_ms(engine, texts[0])
    print("  right " + " ".join(f"{share:6.1%}" for share in right) + f"   ms {ms:.2f}", flush=True)


def print_rows(label: str, rows: list[tuple[float, float]]) -> None:
    """One line for each of the two figures."""
    print(f"  {label}: same  " + " ".join(f"{same:6.1%}" for same, _ in rows))
    print(" " * (len(label) + 4) + "overlap" + " ".join(f"{overlap:6.1%}" for _, overlap in rows), flush=True)


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes in all")
    sys.exit(status)
