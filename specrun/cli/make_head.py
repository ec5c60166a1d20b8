"""`specrun models make-head`: makes an EAGLE-3 head for a target, from its own texts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specrun.cli.make_draft import forget_draft
from specrun.errors import INTERRUPTED_EXIT_CODE, ModelFileError, SpecrunError, UsageError
from specrun.interrupts import InterruptFlag
from specrun.options import completion
from specrun.options.expand import expanded, flag, option
from specrun.views import output

if TYPE_CHECKING:
    from specrun.making.head.making import HeadOrder

_TARGET_HELP = "Alias, org/repo:QUANT or GGUF file."


@dataclass(frozen=True)
class HeadOptions:
    """How the head is made, as the user gave it."""

    hours: float | None = option(None, "H", "Hours for texts and learning together. By default 2.")
    file: Path | None = option(None, "FILE", "File of the head. By default in the data folder.", "--output", "-o")
    texts: Path | None = option(
        None, "FILE", 'Own prompts beside the shipped ones: JSONL with lines like {"prompt": ...}.'
    )
    vocab: int | None = option(None, "N", "Most tokens that the head can draft. By default 16384.")
    forget: bool = flag("Delete the target's head, and an unfinished one.")


@expanded
def make_head(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help=_TARGET_HELP, show_default=False, autocompletion=completion.here)
    ],
    *,
    how: HeadOptions,
) -> int:
    """Make an EAGLE-3 head for a target, at home. Needs PyTorch: pip install '.[train]'.

    The target answers prompts at temperature 0.8, and the head learns its probabilities from its states. Both are kept
    on disk, so the command can be stopped at any time: the same command goes on where it was. `specrun tune` then
    measures whether the head is faster than other drafts.
    """
    from specrun.catalog import resolve

    path = resolve.local_path(target)
    if how.forget:
        if how.hours is not None or how.vocab is not None or how.file or how.texts:
            raise UsageError("--forget takes no other option")
        if not path.exists():
            raise ModelFileError(f"{path}: no such file; give the target whose head to forget")
        if not forget_head(path):
            raise UsageError(f"no head was made for {path.name}; `specrun models make-head` makes one")
        return 0
    return _make(path, target, how)


def forget_head(target: Path) -> bool:
    """Delete the head that was made for `target`, and an unfinished one. Returns False if there is none."""
    from specrun.catalog import made

    try:
        was_unfinished = made.forget_unfinished_head(target)
    except OSError as error:
        raise SpecrunError(f"{error.filename} cannot be deleted: {error.strerror}") from error
    if was_unfinished:
        output.note("the texts and states of an unfinished head were deleted")
    return forget_draft(target, "head") or was_unfinished


def _make(path: Path, name: str, how: HeadOptions) -> int:
    """Make the head and print the result. Returns the exit code. name: what the user calls the target."""
    from specrun.long_run import Run
    from specrun.making.head import making
    from specrun.views.agreement_curve import curve

    order = _order(path, how)
    with output.progress() as progress, InterruptFlag() as interrupted:
        try:
            result = making.make_head(order, Run(progress, output.note, interrupted))
        except KeyboardInterrupt:
            output.note("interrupted; what was done is kept: the same command goes on from there")
            return INTERRUPTED_EXIT_CODE
    output.write(f"{result.path}\n")
    output.note(curve(result.curve))
    output.note(f"on held-out text {result.curve[-1][1].text}; by {result.by}, expect {result.expected}")
    output.note(
        f"`specrun tune --target {shlex.quote(name)}` measures it, and uses it from then on if it is the fastest"
    )
    return 0


def _order(path: Path, how: HeadOptions) -> HeadOrder:
    """What head the user wants."""
    from specrun.bench import bench_prompts
    from specrun.making.head import making

    given = [prompt.text for prompt in bench_prompts.load(how.texts)] if how.texts else []
    return making.HeadOrder(
        path,
        given,
        making.DEFAULT_HOURS if how.hours is None else how.hours,
        making.DEFAULT_VOCABULARY if how.vocab is None else how.vocab,
        how.file,
    )
