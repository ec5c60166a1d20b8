"""`specrun models make-draft`: a draft made from the target's own file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specrun.cli import output
from specrun.errors import INTERRUPTED_EXIT_CODE, ModelFileError, SpecrunError, UsageError
from specrun.interrupts import InterruptFlag
from specrun.units import size_text

if TYPE_CHECKING:
    from rich.table import Table

    from specrun.making.measuring import Quality
    from specrun.making.result import Result


def make_draft(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="Alias, org/repo:QUANT or GGUF file; the embedded demo without.", show_default=False
        ),
    ] = None,
    types: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Quantizations to try; q2_k,q3_k_s,q4_0 by default, same keeps the target's.",
            show_default=False,
        ),
    ] = None,
    keep_layers: Annotated[
        str | None,
        typer.Option(
            "--keep-layers",
            metavar="LIST",
            help="Shares of the layers to keep; 1,0.75,0.5 by default.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Keep the draft here, not in the data folder.", show_default=False
        ),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Delete the draft that was made.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
) -> int:
    """Make a draft from the target's own file: fewer bits, fewer layers. No download, and the tokenizer fits.

    Several are made with llama.cpp's quantizer and measured against the target; the one with the best expected speed
    is kept, and drafts for this target from then on where no --draft is given.

    agrees: how often its likeliest token is the target's. overlap: what both share of their probabilities at
    temperature 0.8. of target: the time of a pass. chain, expected: the best chain's length and speed, estimated.
    """
    path, name = _located(target)
    if forget:
        if types or keep_layers or file or json:
            raise UsageError("--forget takes no other option")
        if not path.exists():
            raise ModelFileError(f"{path}: no such file; give the target whose draft to forget")
        if not forget_draft(path):
            raise UsageError(f"no draft was made from {path.name}; `specrun models make-draft` makes one")
        return 0
    usual = _usual_draft(target)
    return _make(path, name, usual, types, keep_layers, file, json)


def _located(target: str | None) -> tuple[Path, str | None]:
    """The target's file, and how to name it on the command line. Raises MissingModelError."""
    from specrun.catalog import embedded, resolve

    if target is None:
        return embedded.TARGET, None
    model = resolve.locate(target)
    if model.path is None:
        assert model.hub
        raise resolve.missing_error([model.hub], has_pull=False)
    return model.path, target


def _usual_draft(target: str | None) -> tuple[Path, str] | None:
    """The draft that is taken for a target without a made one, if it is on this machine, and its name."""
    from specrun.catalog import embedded, resolve

    if target is None:
        return embedded.DRAFT, "the embedded draft"
    draft = resolve.choose(target, None, may_fetch=False).draft
    return (draft.path, draft.name) if draft and draft.path else None


def _option(name: str | None) -> str:
    """` --target NAME`, or nothing for the embedded target."""
    return f" --target {shlex.quote(name)}" if name else ""


def forget_draft(target: Path) -> bool:
    """Delete the draft that was made from `target`, and say so. False if there is none."""
    from specrun.catalog import made

    try:
        forgotten = made.forget(target)
    except OSError as error:
        raise SpecrunError(f"{error.filename} cannot be deleted: {error.strerror}") from error
    if forgotten:
        draft, freed = forgotten
        output.note(f"{draft.path} " + (f"deleted: {size_text(freed)} free again" if freed else "is no longer used"))
    return forgotten is not None


def _make(
    path: Path,
    name: str | None,
    usual: tuple[Path, str] | None,
    types: str | None,
    keep_layers: str | None,
    file: Path | None,
    json: bool,
) -> int:
    from specrun.making import candidates, make

    type_names = candidates.parse_types(types) if types is not None else None
    shares = candidates.parse_shares(keep_layers) if keep_layers is not None else None
    # A Ctrl-C that came while llama.cpp writes its log would be lost, so it waits for the pass to be over.
    with output.progress() as progress, InterruptFlag() as interrupted:

        def show(text: str) -> None:
            if interrupted():
                raise KeyboardInterrupt
            progress(text)

        try:
            result = make.make_draft(path, type_names, shares, file, usual and usual[0], show, output.note)
        except KeyboardInterrupt:
            output.note("interrupted; nothing is left of it, and what was used before is used still")
            return INTERRUPTED_EXIT_CODE
    usual_name = usual[1] if usual else ""
    if json:
        output.write_json(result.as_json())
    else:
        output.print_table(_table(result, usual_name))
    _say(result, name, usual_name)
    return 0


def _say(result: Result, name: str | None, usual: str) -> None:
    """What it means."""
    assert result.best.quality
    best = result.best.quality.speedup
    if result.remark:
        output.note(result.remark)
    if best <= 1:
        output.note(f"none is expected to beat plain decoding (the best: {best:.2f} times as fast)")
    if result.rival and result.rival.speedup > best:
        output.note(f"{usual} is expected to be faster ({result.rival.speedup:.2f}); --forget goes back to it")
    output.note(f"kept as {result.path}, and drafts from now on where no --draft is given (--forget ends that)")
    output.note(f"`specrun tune{_option(name)}` measures what it really brings, and finds the best plan")


def _table(result: Result, usual: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("draft", no_wrap=True)
    for head in ("size", "agrees", "overlap", "ms a pass", "of target", "chain", "expected"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    table.add_row(
        "plain decoding", size_text(result.target_bytes), "", "", f"{result.plain_ms:.2f}", "", "", "1.00 x", ""
    )
    for outcome in result.outcomes:
        size = size_text(outcome.n_bytes) if outcome.n_bytes else ""
        last = "kept" if outcome is result.best else outcome.reason
        table.add_row(outcome.candidate.name, size, *_cells(outcome.quality), last)
    if result.rival:
        table.add_row(usual, "", *_cells(result.rival), "used until now")
    return table


def _cells(found: Quality | None) -> list[str]:
    if found is None:
        return [""] * 6
    shares = [f"{found.agreement:.0%}", f"{found.overlap:.0%}"]
    return [*shares, f"{found.ms:.2f}", f"{found.cost:.0%}", str(found.depth), f"{found.speedup:.2f} x"]
