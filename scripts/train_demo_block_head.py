"""Train a DSpark head for the demonstration target and write block-head.gguf.

A DSpark head drafts a block of tokens in one pass. It learns the probabilities that the target gives, on the library's
source code and on texts that the target wrote. All figures printed at the end are measured on the written file, with
library files that neither saw.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from demo_pair import (
    block_head,
    block_start,
    block_training,
    drafting,
    export,
    head_export,
    head_making,
    head_teaching,
    measure,
)
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
    # The defaults are what made the figures of docs/embedded-pair.md.
    options = head_making.parser(__doc__, minutes=33.0, written_tokens=980_000).parse_args()
    on = head_making.ground(options.target, TARGET_SHAPE, *begin(options))
    trained = block_head.BlockHead(SHAPE)
    path: Path = options.measure or options.out / "block-head.gguf"
    if options.measure is None:

        def learn(lessons: head_teaching.Lessons) -> int:
            return block_training.train(trained, lessons, options.minutes, options.seed, options.checkpoint)

        head_making.train(options, trained, on, partial(block_start.begin, trained, on.target), learn)
        head_export.export_block_head(trained, options.target, path)
    report(path, export.load_exported(path, trained), on, options)
    return 0


def report(path: Path, trained: block_head.BlockHead, on: head_making.Ground, options: argparse.Namespace) -> None:
    """Print what the written file does, in PyTorch and in llama.cpp."""

    def agreement(lessons: head_teaching.Lessons, root: int) -> head_making.Levels:
        return block_training.agreement(lessons, trained, first=root)

    prompts = head_making.report_agreement(path, trained, on, SHAPE.block, agreement)
    print("\nin llama.cpp, on the target's greedy text: how often a row's first choice is right; ms of a block")
    with drafting.opened(options.target, path, options.threads) as engine:
        texts = drafting.written(engine, prompts, measure.CONTINUATION_TOKENS)
        right = drafting.right_by_level(engine, texts, measure.PROMPT_TOKENS, SHAPE.block)
        ms = drafting.start_ms(engine, texts[0])
    print("  right " + " ".join(f"{share:6.1%}" for share in right) + f"   ms {ms:.2f}", flush=True)


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes in all")
    sys.exit(status)
