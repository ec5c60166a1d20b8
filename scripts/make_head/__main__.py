"""Make an EAGLE-3 head for a target, at home. Needs PyTorch: pip install '.[train]'.

    python -m scripts.make_head TARGET [--hours H] [--output FILE] [--texts FILE] [--vocab N]
    python -m scripts.make_head TARGET --forget

The target answers prompts at temperature 0.8, and the head learns its probabilities from its states. Both are kept
on disk, so the command can be stopped at any time: the same command goes on where it was. `specrun tune` then
measures whether the head is faster than other drafts.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from specrun import interrupts
from specrun.bench import load
from specrun.catalog import resolve
from specrun.cli.models import forget_made
from specrun.display_text import one_line
from specrun.errors import INTERRUPTED_EXIT_CODE, ModelFileError, SpecrunError, UsageError
from specrun.long_run import Run
from specrun.views import output

from .agreement_curve import curve
from .making import DEFAULT_HOURS, DEFAULT_VOCABULARY, HeadOrder, make_head


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, make or forget the head. Returns the exit code (see `specrun.errors`)."""
    options = parser().parse_args(arguments)
    interrupts.catch_endings()
    try:
        path = resolve.local_path(options.target)
        code = forget(path, options) if options.forget else make(path, options)
    except SpecrunError as error:
        print(f"make_head: {one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED_EXIT_CODE
    return interrupts.exit_code() if code == INTERRUPTED_EXIT_CODE else code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    own = argparse.ArgumentParser(
        prog="make_head", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    own.add_argument("target", metavar="TARGET", help="alias, org/repo:QUANT or GGUF file")
    own.add_argument(
        "--hours", type=float, metavar="H", help=f"hours for texts and learning together (by default {DEFAULT_HOURS:g})"
    )
    own.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file of the head (by default in the data folder)"
    )
    own.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        help='own prompts beside the shipped ones: JSONL with lines like {"prompt": ...}',
    )
    own.add_argument(
        "--vocab", type=int, metavar="N", help=f"most tokens that the head can draft (by default {DEFAULT_VOCABULARY})"
    )
    own.add_argument("--forget", action="store_true", help="delete the target's head, and an unfinished one")
    return own


def forget(path: Path, options: argparse.Namespace) -> int:
    """Delete the head that was made for the target, and an unfinished one. Returns the exit code."""
    if options.hours is not None or options.vocab is not None or options.output or options.texts:
        raise UsageError("--forget takes no other option")
    if not path.exists():
        raise ModelFileError(f"{path}: no such file; give the target whose head to forget")
    if not forget_made(path, "head"):
        raise UsageError(f"no head was made for {path.name}; the same command without --forget makes one")
    return 0


def make(path: Path, options: argparse.Namespace) -> int:
    """Make the head and print the result. Returns the exit code."""
    order = HeadOrder(
        path,
        [prompt.text for prompt in load(options.texts)] if options.texts else [],
        DEFAULT_HOURS if options.hours is None else options.hours,
        DEFAULT_VOCABULARY if options.vocab is None else options.vocab,
        options.output,
    )
    with output.progress() as progress, interrupts.InterruptFlag() as interrupted:
        try:
            result = make_head(order, Run(progress, output.note, interrupted))
        except KeyboardInterrupt:
            output.note("interrupted; what was done is kept: the same command goes on from there")
            return INTERRUPTED_EXIT_CODE
    output.write(f"{result.path}\n")
    output.note(curve(result.curve))
    output.note(f"on held-out text {result.curve[-1][1].text}; by {result.by}, expect {result.expected}")
    tune = f"specrun tune --target {shlex.quote(options.target)}"
    output.note(f"`{tune}` measures it, and uses it from then on if it is the fastest")
    return 0


if __name__ == "__main__":
    sys.exit(main())
