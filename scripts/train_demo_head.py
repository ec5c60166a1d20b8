"""Make an EAGLE-3 head for the demonstration target, and measure it beside the draft.

It is `python -m scripts.make_head` with prompts of source code: beginnings cut from the standard library's files, which
the target continues. All figures are measured on the written file; the head's prompts are none of the held-out files.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from demo_pair import drafting, measure, tokenizer
from demo_pair.head_export import check_vocabulary
from make_head.making import HeadOrder, make_head
from train_demo_pair import VOCABULARY, begin

from specrun.catalog import made
from specrun.errors import SpecrunError
from specrun.long_run import Run

PROMPTS = 8000
PROMPT_TOKENS = 96
MEASURED_ONE_IN = 24  # windows of held-out text
LEVELS = 6


def main() -> int:
    """Make the head, measure."""
    options = parse_arguments()
    documents, tokens = begin(options)
    check_vocabulary(options.target, tokens)
    streams = {
        role: tokenizer.encode_documents(tokens, [d for d in documents if d.role == role])
        for role in ("library", "held-out")
    }
    path: Path = options.measure or options.out / "head.gguf"
    if options.measure is None:
        windows = measure.rows_of(streams["library"], PROMPT_TOKENS).tolist()
        prompts = [tokens.decode(window) for window in windows[:: max(len(windows) // PROMPTS, 1)]]
        order = HeadOrder(options.target, prompts, options.minutes / 60, VOCABULARY, path, with_shipped=False, raw=True)
        result = make_head(order, Run(note=lambda text: print(text, flush=True)))
        made.forget(options.target, "head")  # --output keeps the file; it is no head of the user's
        for seconds, found in result.curve:
            shares = " ".join(f"{share:6.1%}" for share in [*found.same, *found.overlap])
            print(f"  {seconds / 60:5.1f} minutes of learning: same, overlap by level {shares}")
    report(path, measure.rows_of(streams["held-out"])[::MEASURED_ONE_IN, : measure.PROMPT_TOKENS].tolist(), options)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = options.add_argument
    add("--out", type=Path, default=Path("demo-pair"), help="folder for the file (%(default)s)")
    add("--target", type=Path, default=Path("specrun/embedded/target.gguf"), help="the target's file (%(default)s)")
    add("--draft", type=Path, default=Path("specrun/embedded/draft.gguf"), help="a draft to compare with (%(default)s)")
    add("--measure", type=Path, metavar="FILE", help="measure this head instead of making one")
    add("--minutes", type=float, default=60.0, help="for texts and learning together (%(default)s)")
    add("--threads", type=int, default=1, help="processor threads (%(default)s)")
    add("--seed", type=int, default=7, help="seed of what torch draws at random (%(default)s)")
    return options.parse_args()


def report(path: Path, prompts: list[list[int]], options: argparse.Namespace) -> None:
    """Print how head and draft do in llama.cpp, on what the target writes greedily after `prompts`."""
    print("\nin llama.cpp, on the target's greedy text: how often a level's first choice is right; ms of a level")
    for drafting_file in (path, options.draft):
        with drafting.opened(options.target, drafting_file, options.threads) as engine:
            texts = drafting.written(engine, prompts, measure.CONTINUATION_TOKENS)
            right = drafting.right_by_level(engine, texts, measure.PROMPT_TOKENS, LEVELS)
            ms = drafting.level_ms(engine, texts[0])
        print(f"  {drafting_file.name}: right " + " ".join(f"{share:6.1%}" for share in right))
        print("    nodes: ms  " + "  ".join(f"{width}: {one:.2f}" for width, one in ms.items()), flush=True)


if __name__ == "__main__":
    started = time.monotonic()
    try:
        status = main()
    except SpecrunError as error:
        print(f"train_demo_head.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes in all")
    sys.exit(status)
