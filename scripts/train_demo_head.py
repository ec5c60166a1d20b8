"""Train an EAGLE-3 head for the demonstration target and write head.gguf.

The head begins as a closed form of the target's own weights, then learns the probabilities that the target gives, on
the library's source code and on texts that the target wrote. All figures printed at the end are measured on the written
file, with library files that neither saw.
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
    drafting,
    export,
    head,
    head_export,
    head_start,
    head_teaching,
    head_training,
    measure,
    model,
    tokenizer,
    training,
)
from train_demo_pair import TARGET_SHAPE, VOCABULARY, begin

# The states before the second, the middle and the last layer: llama.cpp gives no state after the last one. The sizes
# are those of the target's last layer: twice the attention heads, or twice the feed-forward width, cost more of a
# draft's time than they brought in agreement.
SHAPE = head.HeadShape(
    width=256, heads=8, own_heads=4, head_width=32, feed_forward=896, target_layers=(1, 4, 7), vocabulary=VOCABULARY
)
LESSON = 512  # tokens of a text that the head learns from
STARTING_LESSONS = 480  # texts that the closed form is fitted on
REPORTED_LEVELS = 6
MEASURED_WINDOW = 512
MEASURED_ONE_IN = 6  # windows of held-out text
WRITING_BATCH = 384
WRITING_PROMPT = 96
GREEDY_ONE_IN = 6  # batches that the target writes; greedy texts repeat themselves, so they teach less


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
    trained = head.Head(SHAPE, target)
    path: Path = options.measure or options.out / "head.gguf"
    if options.measure is None:
        train(options, trained, target, training.Sources(streams["library"], streams["test"]))
        head_export.export(trained, options.target, path)
    held_out = measure.rows_of(streams["held-out"], MEASURED_WINDOW)[::MEASURED_ONE_IN]
    report(path, export.load_exported(path, trained), target, held_out, options)
    return 0


def train(options: argparse.Namespace, trained: head.Head, target: model.Llama, sources: training.Sources) -> None:
    """Teach the head what the target says about the library and about its own texts."""
    random = np.random.default_rng(options.seed)
    written = written_texts(options, target, sources)
    read = sources.windows(random, options.read_tokens // LESSON, LESSON)
    texts = torch.cat([*written, read])[torch.from_numpy(random.permutation(len(read) + sum(map(len, written))))]
    lessons = head_teaching.lessons_of(target, texts, SHAPE.target_layers)
    print(f"the target read {texts.numel()} tokens for the head", flush=True)
    few = head_teaching.Lessons(*(part[:STARTING_LESSONS] for part in lessons[:3]), lessons.output)
    explained = head_start.begin(trained, target, few)
    print(f"the linear guess explains {explained:.1%} of the state before the last layer", flush=True)
    n_tokens = head_training.train(trained, lessons, options.minutes, options.seed, options.checkpoint)
    print(f"trained on {n_tokens} tokens, {options.threads} threads, {platform.machine()}, torch {torch.__version__}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line; the defaults are what made the shipped file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-pair"), help="folder for the file (%(default)s)")
    parser.add_argument(
        "--target", type=Path, default=Path("specrun/embedded/target.gguf"), help="the target's file (%(default)s)"
    )
    parser.add_argument(
        "--draft",
        type=Path,
        default=Path("specrun/embedded/draft.gguf"),
        help="a draft for the target, to compare with (%(default)s)",
    )
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure this head instead of training one")
    parser.add_argument(
        "--minutes",
        type=float,
        default=46.0,
        help="processor time that the head learns for; 0 writes its start (%(default)s)",
    )
    parser.add_argument(
        "--read-tokens", type=int, default=1_100_000, help="text the target reads for the head (%(default)s)"
    )
    parser.add_argument(
        "--written-tokens", type=int, default=1_770_000, help="text the target writes for the head (%(default)s)"
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


def written_texts(
    options: argparse.Namespace, target: model.Llama, sources: training.Sources
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of the target [count, time], a fifth of them greedy, the others at temperature 0.8."""
    saved: Path | None = options.written
    if saved is not None and saved.exists():
        texts = torch.load(saved, weights_only=True)
        return texts["greedy"].long(), texts["sampled"].long()
    written: dict[str, list[torch.Tensor]] = {"greedy": [], "sampled": []}
    for index in range(max(GREEDY_ONE_IN, options.written_tokens // (WRITING_BATCH * LESSON))):
        kind = "greedy" if index % GREEDY_ONE_IN == 0 else "sampled"
        temperature = 0.0 if kind == "greedy" else measure.SAMPLING_TEMPERATURE
        prompts = sources.windows(np.random.default_rng((options.seed, index)), WRITING_BATCH, WRITING_PROMPT)
        with torch.autocast("cpu", torch.bfloat16):
            texts = model.generate(target, prompts, LESSON - WRITING_PROMPT, temperature, seed=options.seed + index)
        written[kind].append(texts)
        print(f"the target wrote {(index + 1) * WRITING_BATCH * LESSON} tokens", flush=True)
    all_texts = {kind: torch.cat(rows) for kind, rows in written.items()}
    if saved is not None:
        torch.save(all_texts, saved)
    return all_texts["greedy"], all_texts["sampled"]


def report(
    path: Path, trained: head.Head, target: model.Llama, held_out: torch.Tensor, options: argparse.Namespace
) -> None:
    """Print what the written file does, in PyTorch and in llama.cpp."""
    print(f"\nhead: {trained.parameter_count()} parameters, {trained.shape}")
    print(f"  {path.stat().st_size} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")

    def lessons(texts: torch.Tensor) -> head_teaching.Lessons:
        return head_teaching.lessons_of(target, texts, trained.shape.target_layers)

    print("\nagreement of head and target by level (same most likely token, overlap of the distributions)")
    print_levels("held-out text", head_training.agreement(lessons(held_out), trained, REPORTED_LEVELS))
    prompts = held_out[:, : measure.PROMPT_TOKENS]
    for label, temperature in (("greedy", 0.0), ("T=0.8", measure.SAMPLING_TEMPERATURE)):
        texts = model.generate(target, prompts, measure.CONTINUATION_TOKENS + REPORTED_LEVELS, temperature, seed=0)
        levels = head_training.agreement(lessons(texts), trained, REPORTED_LEVELS, first=measure.PROMPT_TOKENS - 2)
        print_levels(f"text the target wrote, {label}", levels)
    print("\nin llama.cpp, on the target's greedy text: how often a level's first choice is right; ms of a level")
    for drafting_file in (path, options.draft):
        with drafting.opened(options.target, drafting_file, options.threads) as engine:
            texts = drafting.written(engine, prompts[::4].tolist(), measure.CONTINUATION_TOKENS)
            right = drafting.right_by_level(engine, texts, measure.PROMPT_TOKENS, REPORTED_LEVELS)
            ms = drafting.level_ms(engine, texts[0])
        print(f"  {drafting_file.name}: right " + " ".join(f"{share:6.1%}" for share in right))
        print("    nodes: ms  " + "  ".join(f"{width}: {one:.2f}" for width, one in ms.items()), flush=True)


def print_levels(label: str, levels: list[tuple[float, float]]) -> None:
    """One line for each of the two figures."""
    print(f"  {label}: same  " + " ".join(f"{same:6.1%}" for same, _ in levels))
    print(" " * (len(label) + 4) + "overlap" + " ".join(f"{overlap:6.1%}" for _, overlap in levels), flush=True)


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes in all")
    sys.exit(status)
