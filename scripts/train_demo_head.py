"""Train an EAGLE-3 head for the demonstration target and write head.gguf.

The head learns the probabilities that the target gives, on the library's source code and on texts that the target
wrote. All figures printed at the end are measured on the written file, with library files that neither saw.
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
from demo_pair import drafting, export, head, head_export, head_training, measure, model, tokenizer, training
from train_demo_pair import TARGET_SHAPE, VOCABULARY, begin

# The states before the second, the middle and the last layer: llama.cpp gives no state after the last one.
SHAPE = head.HeadShape(width=256, heads=8, feed_forward=1792, target_layers=(1, 4, 7), vocabulary=VOCABULARY)
DEPTHS = (2, 2, 3, 5)
BATCH_TOKENS = 2048
REPORTED_LEVELS = 6
MEASURED_WINDOW = 512
MEASURED_ONE_IN = 6  # windows of held-out text
WRITING_BATCH = 128
WRITING_PROMPT = 32
WRITING_LENGTH = 512


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
    texts = head_training.Texts(sources, *written_texts(options, target, sources))
    seconds = training.train(
        trained,
        head_training.unrolled_loss(target, texts, DEPTHS),
        options.tokens,
        options.seed,
        long_share=0.0,
        compiled=False,
        label="head",
        batch_tokens=BATCH_TOKENS,
        checkpoint=options.checkpoint,
    )
    print(
        f"trained in {seconds / 60:.0f} minutes, {options.threads} threads, {platform.machine()}, "
        f"torch {torch.__version__}"
    )


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
    parser.add_argument("--tokens", type=int, default=900_000, help="budget of the head (%(default)s)")
    parser.add_argument(
        "--written-tokens", type=int, default=262_144, help="text the target writes for the head (%(default)s)"
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
    """Texts of the target [count, time], a quarter of them greedy, the others at temperature 0.8."""
    saved: Path | None = options.written
    if saved is not None and saved.exists():
        texts = torch.load(saved, weights_only=True)
        return texts["greedy"], texts["sampled"]
    batches = max(4, options.written_tokens // (WRITING_BATCH * WRITING_LENGTH))
    written: dict[str, list[torch.Tensor]] = {"greedy": [], "sampled": []}
    for index in range(batches):
        kind = "greedy" if index % 4 == 0 else "sampled"
        random = np.random.default_rng((options.seed, index))
        with torch.autocast("cpu", torch.bfloat16):
            written[kind].append(
                model.generate(
                    target,
                    sources.windows(random, WRITING_BATCH, WRITING_PROMPT),
                    WRITING_LENGTH - WRITING_PROMPT,
                    0.0 if kind == "greedy" else measure.SAMPLING_TEMPERATURE,
                    seed=options.seed + index,
                )
            )
        print(f"the target wrote {(index + 1) * WRITING_BATCH * WRITING_LENGTH} tokens", flush=True)
    texts = {kind: torch.cat(rows) for kind, rows in written.items()}
    if saved is not None:
        torch.save(texts, saved)
    return texts["greedy"], texts["sampled"]


def report(
    path: Path, trained: head.Head, target: model.Llama, held_out: torch.Tensor, options: argparse.Namespace
) -> None:
    """Print what the written file does, in PyTorch and in llama.cpp."""
    print(f"\nhead: {trained.parameter_count()} parameters, {trained.shape}")
    print(f"  {path.stat().st_size} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    print("\nagreement of head and target by level (same most likely token, overlap of the distributions)")
    print_levels("held-out text", head_training.agreement(target, trained, held_out, REPORTED_LEVELS))
    prompts = held_out[:, : measure.PROMPT_TOKENS]
    for label, temperature in (("greedy", 0.0), ("T=0.8", measure.SAMPLING_TEMPERATURE)):
        texts = model.generate(target, prompts, measure.CONTINUATION_TOKENS + REPORTED_LEVELS, temperature, seed=0)
        levels = head_training.agreement(target, trained, texts, REPORTED_LEVELS, first=measure.PROMPT_TOKENS - 2)
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
