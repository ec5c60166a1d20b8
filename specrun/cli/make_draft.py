"""`specrun models make-draft`: drafts made from the target's file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specrun.display_text import size_text
from specrun.errors import INTERRUPTED_EXIT_CODE, ModelFileError, UsageError, disk_errors
from specrun.interrupts import InterruptFlag
from specrun.options.expand import argument, complete_here, expanded, flag, option
from specrun.views import output

if TYPE_CHECKING:
    from specrun.catalog.made import Kind
    from specrun.making.make import Result
    from specrun.making.measuring import Quality

_TARGET_HELP = "Alias, org/repo:QUANT or GGUF file. By default the embedded target."


@dataclass(frozen=True)
class DraftOptions:
    """How the draft is made, as the user gave it."""

    types: str | None = option(
        None, "LIST", "Quantizations to try; `same` keeps the target's own. By default q2_k,q3_k_s,q4_0."
    )
    keep_layers: str | None = option(None, "LIST", "Shares of the target's layers to keep. By default 1,0.75,0.5.")
    file: Path | None = option(None, "FILE", "File of the draft. By default in the data folder.", "--output", "-o")
    forget: bool = flag("Delete the draft that was made from the target.")
    json: bool = flag("One JSON object instead of the table.")


@expanded
def make_draft(
    target: Annotated[str | None, argument("TARGET", _TARGET_HELP, complete_here)] = None, *, how: DraftOptions
) -> int:
    """Make a draft from the target's own file, with fewer bits per weight and fewer layers. Downloads nothing.

    Several drafts are made with llama.cpp's quantizer and compared with the target. The draft with the highest expected
    speed is kept. From then on it drafts for this target in every command without --draft.

    Columns of the table: agrees: how often draft and target have the same likeliest token. overlap: how much of the
    probabilities at temperature 0.8 both share. of target: time of a draft pass as a share of a target pass. best
    tree: the fastest token tree with it. expected: its estimated speed, compared with plain decoding.
    """
    from specrun.catalog import embedded, resolve

    path = embedded.TARGET if target is None else resolve.local_path(target)
    if not how.forget:
        return _make(path, target, how)
    if how.types or how.keep_layers or how.file or how.json:
        raise UsageError("--forget takes no other option")
    if not path.exists():
        raise ModelFileError(f"{path}: no such file; give the target whose draft to forget")
    if not forget_draft(path):
        raise UsageError(f"no draft was made from {path.name}; `specrun models make-draft` makes one")
    return 0


def forget_draft(target: Path, kind: Kind = "draft") -> bool:
    """Delete the draft, or the head, that was made of `target` and print a note. Returns False if there is none."""
    from specrun.catalog import made

    with disk_errors("deleted"):
        forgotten = made.forget(target, kind)
        compared = made.find_fastest(target)
        if forgotten and compared and compared.path == forgotten[0].path:
            made.forget_fastest(target)
    if forgotten:
        draft, freed = forgotten
        output.note(f"{draft.path} " + (f"deleted: {size_text(freed)} free again" if freed else "is no longer used"))
    return forgotten is not None


def forget_head(target: Path) -> bool:
    """Delete the head that was made for `target`, and an unfinished one. Returns False if there is none."""
    from specrun.catalog import made

    with disk_errors("deleted"):
        was_unfinished = made.forget_unfinished_head(target)
    if was_unfinished:
        output.note("the texts and states of an unfinished head were deleted")
    return forget_draft(target, "head") or was_unfinished


def _make(path: Path, name: str | None, how: DraftOptions) -> int:
    """Make the draft and print the result. Returns the exit code. name: what the user calls the target, if anything."""
    from specrun.catalog import embedded, resolve
    from specrun.long_run import Run
    from specrun.making import make

    type_names = make.parse_types(how.types) if how.types is not None else None
    shares = make.parse_shares(how.keep_layers) if how.keep_layers is not None else None
    usual: Path | None = embedded.DRAFT  # what drafts if none was made
    usual_name = "the embedded draft"
    if name is not None and not embedded.is_meant(name):
        draft = resolve.choose(name, None, may_fetch=False).draft
        usual, usual_name = (draft.path, draft.name) if draft else (None, "")
    # A KeyboardInterrupt raised while llama.cpp calls back to log would be lost; the flag is checked between passes.
    with output.progress() as progress, InterruptFlag() as interrupted:
        try:
            run = Run(progress, output.note, interrupted)
            result = make.make_draft(path, type_names, shares, how.file, usual, run)
        except KeyboardInterrupt:
            output.note("interrupted; no draft was made, and the draft used before is still used")
            return INTERRUPTED_EXIT_CODE
    if how.json:
        output.write_json(result.as_json())
    else:
        output.print_table(_table(result, usual_name))
    assert result.best.quality
    best = result.best.quality.speedup
    if result.remark:
        output.note(result.remark)
    if best <= 1:
        output.note(f"none is expected to beat plain decoding (the best: {best:.2f} times as fast)")
    if result.rival and result.rival.speedup > best:
        better = f"{usual_name} is expected to be faster ({result.rival.speedup:.2f} times)"
        output.note(f"{better}; --forget goes back to it")
    output.note(f"kept as {result.path}; it drafts from now on unless --draft is given (--forget ends that)")
    target = f" --target {shlex.quote(name)}" if name else ""
    output.note(f"`specrun tune{target}` measures the real speed and finds the best plan")
    return 0


def _table(result: Result, usual: str) -> output.FittingTable:
    figures = ("size", "agrees", "overlap", "of target", "best tree", "expected")
    table = output.FittingTable("draft", *figures, "", right=figures, optional=("overlap", "of target", "best tree"))
    table.add_row("plain decoding", size_text(result.target.n_bytes), "", "", "", "", "1.00 x", "")
    for outcome in result.outcomes:
        size = size_text(outcome.n_bytes) if outcome.n_bytes else ""
        remark = "kept" if outcome is result.best else outcome.reason
        table.add_row(outcome.candidate.name, size, *_cells(outcome.quality), remark)
    if result.rival:
        table.add_row(usual, "", *_cells(result.rival), "used until now")
    return table


def _cells(quality: Quality | None) -> list[str]:
    if quality is None:
        return [""] * 5
    shares = [f"{share:.0%}" for share in (quality.agreement, quality.overlap, quality.cost)]
    tree = quality.tree
    name = f"chain of {tree.depth}" if tree.n_leaves == 1 else f"{tree.n_nodes} nodes, {tree.depth} deep"
    return [*shares, name, f"{quality.speedup:.2f} x"]
