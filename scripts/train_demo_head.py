"""Train an EAGLE-3 head for the demonstration target and write head.gguf.

The head begins as a closed form of the target's own weights, then learns the probabilities that the target gives, on
the library's source code and on texts that the target wrote. All figures printed at the end are measured on the written
file, with library files that neither saw.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from demo_pair import (
    drafting,
    export,
    head,
    head_export,
    head_making,
    head_start,
    head_teaching,
    head_training,
    measure,
)
from train_demo_pair import TARGET_SHAPE, VOCABULARY, begin

# The states before the second, the middle and the last layer: llama.cpp gives no state after the last one. The sizes
# are those of the target's last layer: twice the attention heads, or twice the feed-forward width, cost more of a
# draft's time than they brought in agreement.
SHAPE = head.HeadShape(
    width=256, heads=8, own_heads=4, head_width=32, feed_forward=896, target_layers=(1, 4, 7), vocabulary=VOCABULARY
)
REPORTED_LEVELS = 6


def main() -> int:
    """Train, write, measure."""
    options = parse_arguments()
    on = head_making.ground(options.target, TARGET_SHAPE, *begin(options))
    trained = head.Head(SHAPE, on.target)
    path: Path = options.measure or options.out / "head.gguf"
    if options.measure is None:

        def learn(lessons: head_teaching.Lessons) -> int:
            return head_training.train(trained, lessons, options.minutes, options.seed, options.checkpoint)

        head_making.train(options, trained, on, partial(head_start.begin, trained, on.target), learn)
        head_export.export(trained, options.target, path)
    report(path, export.load_exported(path, trained), on, options)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line; the defaults are what made the shipped file."""
    parser = head_making.parser(__doc__, minutes=46.0, written_tokens=1_770_000)
    parser.add_argument(
        "--draft",
        type=Path,
        default=Path("specrun/embedded/draft.gguf"),
        help="a draft for the target, to compare with (%(default)s)",
    )
    return parser.parse_args()


def report(path: Path, trained: head.Head, on: head_making.Ground, options: argparse.Namespace) -> None:
    """Print what the written file does, in PyTorch and in llama.cpp."""

    def agreement(lessons: head_teaching.Lessons, root: int) -> head_making.Levels:
        return head_training.agreement(lessons, trained, REPORTED_LEVELS, first=root - 1)

    prompts = head_making.report_agreement(path, trained, on, REPORTED_LEVELS, agreement)
    print("\nin llama.cpp, on the target's greedy text: how often a level's first choice is right; ms of a level")
    for drafting_file in (path, options.draft):
        with drafting.opened(options.target, drafting_file, options.threads) as engine:
            texts = drafting.written(engine, prompts, measure.CONTINUATION_TOKENS)
            right = drafting.right_by_level(engine, texts, measure.PROMPT_TOKENS, REPORTED_LEVELS)
            ms = drafting.level_ms(engine, texts[0])
        print(f"  {drafting_file.name}: right " + " ".join(f"{share:6.1%}" for share in right))
        print("    nodes: ms  " + "  ".join(f"{width}: {one:.2f}" for width, one in ms.items()), flush=True)


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes in all")
    sys.exit(status)
