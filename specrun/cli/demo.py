"""`specrun demo`: the same text with and without drafts, by a model that does not fit its memory: side by side on a
terminal while it is written, and what that tells.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from specrun.display_text import rate_text, size_text
from specrun.hardware.cpu import LoadWatch, usable_cores
from specrun.interrupts import InterruptFlag
from specrun.options.machine_options import MachineOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import output

if TYPE_CHECKING:
    from specrun.catalog.entries import Entry
    from specrun.demo import Comparison
    from specrun.hardware.fit import Fit

_TOKENS_IN_RAM = 48  # of the texts in RAM

_NAMES = ("plain", "specrun")
_STYLES = ("yellow", "green")
_LEAST_WIDTH = 76  # columns; narrower terminals get one text above the other
_SECONDS_BETWEEN_FRAMES = 0.1  # a frame takes about 2 ms, so drawing costs both texts alike and little
_MOST_LINES = 18  # of a text; more would not be read in these seconds
_BORDERS = 2  # lines or columns of a panel's frame
_BELOW = 4  # lines that are left free for the sentence and the shell's prompt


def demo(
    remove: Annotated[bool, typer.Option("--remove", help="Delete the pair that the demonstration has made.")] = False,
) -> None:
    """See it pay: the same text written plainly and with drafts.

    The embedded pair is widened to 0.4 billion parameters, once, which takes 430 MB in the cache folder. Both texts
    get so little memory that most weights are read from disk in each pass, as with a model that does not fit. The end
    says what the same drafts bring in RAM, and what models of 14 to 70 billion parameters would do on this machine.
    The text stays as poor as that of the tiny model.
    """
    from specrun import demo as shown

    if remove:
        output.note(f"{size_text(shown.remove())} are free again")
        return
    from specrun.catalog.entries import catalog
    from specrun.cli.opening import opened
    from specrun.hardware.memory import Memory
    from specrun.long_run import Run

    with output.progress() as display, InterruptFlag() as interrupted:
        run = Run(display, output.note, interrupted)
        target, draft = shown.wide_pair(run)
        run.is_over()  # raises KeyboardInterrupt after Ctrl-C
    models = ModelOptions(str(target), str(draft))
    speculation = SpeculationOptions(speculate="chain", depth=shown.N_DRAFTED, learn=False)
    watch = LoadWatch()
    threads = _free_threads(watch)
    machine = MachineOptions(gpu_layers="0", gpu_layers_draft="0", threads=threads)
    with opened(models, speculation, machine, temperature=0.0, most_ram=shown.MOST_RAM, is_measured=True) as model:
        first = shown.Comparison(model)
        output.note(first.announcement)
        with InterruptFlag() as interrupted:
            _show(first, first.write(interrupted))
    texts = [first]
    if first.is_streamed and Memory.read().available_bytes < shown.IN_RAM:
        output.stdout.print("There is no figure with all weights in RAM, because so much is not free")
    elif first.is_streamed:
        with opened(models, speculation, machine, temperature=0.0, is_measured=True) as model:
            texts.append(shown.Comparison(model, _TOKENS_IN_RAM))
            with output.progress() as display, InterruptFlag() as interrupted:
                for _ in texts[1].write(interrupted):
                    display("writing the same text with all weights in RAM")
        output.stdout.print(texts[1].beside)
    is_busy = watch.so_far().threads_beside(threads) < usable_cores()
    sentence, expected = shown.outlook(texts, target, catalog(), is_busy)
    output.stdout.print(sentence)
    output.print_table(_outlook_table(expected))


def _free_threads(watch: LoadWatch) -> int:
    """As many threads as other programs leave cores for, which all texts then have, whatever changes meanwhile."""
    load, wanted = watch.after(), usable_cores()
    free = load.threads_beside(wanted)
    if free < wanted:
        output.note(f"{load}, so both texts get {free} of {wanted} threads, and what is measured is lower")
    return free


def _show(comparison: Comparison, steps: Iterable[tuple[int, str]]) -> None:
    """Draw the texts on a terminal while they are written, or write a line of figures for each; then the verdict."""
    console = output.stdout
    if console.is_terminal:
        _draw(comparison, steps, console)
    else:
        deque(steps, maxlen=0)
        output.write(lines(comparison))
    output.stdout.print(comparison.verdict, style="bold")


def _outlook_table(expected: Sequence[tuple[Entry, Fit, float]]) -> output.FittingTable:
    """What to expect of other models, as `specrun.demo.outlook` has it."""
    from specrun.views.models_table import PLACES

    table = output.FittingTable("model", "size", "fits", "plain tokens/s", "with a draft", right=("size",))
    for entry, fit, fast in expected:
        rates = [f"about {rate_text(rate)}" if rate else "-" for rate in (fit.tokens_per_second, fast)]
        table.add_row(entry.alias, size_text(entry.expected_bytes or 0), PLACES[fit.fits], *rates)
    return table


def lines(comparison: Comparison) -> str:
    """A line of figures for each text."""
    text = ""
    for name, completion in zip(_NAMES, (comparison.plain, comparison.fast), strict=True):
        s = completion.statistics
        figures = f"{s.completion_tokens} tokens in {s.seconds:.2f} s, {s.tokens_per_second:.1f} tokens/s"
        text += f"{name:<8} {figures}, {s.tokens_per_pass:.2f} tokens a pass\n"
    return text


def _draw(comparison: Comparison, steps: Iterable[tuple[int, str]], console: Console) -> None:
    view = _View(comparison)
    with Live(view, console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
        drawn = 0.0
        for which, piece in steps:
            view.add(which, piece)
            now = time.perf_counter()
            if now > drawn + _SECONDS_BETWEEN_FRAMES:
                live.refresh()
                drawn = now
        view.finish()
        live.refresh()


class _View:
    """Both texts, as far as they are written. The tokens of the last pass stand out."""

    def __init__(self, comparison: Comparison) -> None:
        from specrun.demo import PROMPT

        self._completions = (comparison.plain, comparison.fast)
        self._texts = [PROMPT, PROMPT]
        self._last = ["", ""]
        self._now = 0

    def add(self, which: int, piece: str) -> None:
        """Take in what a pass brought to the text with this index."""
        self._now = which
        self._texts[which] += self._last[which]
        self._last[which] = piece

    def finish(self) -> None:
        """Both texts are complete."""
        self._now = len(_NAMES)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_wide = options.max_width >= _LEAST_WIDTH
        height = options.size.height - _BELOW - _BORDERS
        if not is_wide:
            height = height // 2 - _BORDERS
        width = (options.max_width // 2 if is_wide else options.max_width) - _BORDERS - 2
        panels = [self._panel(which, width, max(min(height, _MOST_LINES), 1), console) for which in range(2)]
        grid = Table.grid(Column(ratio=1), Column(ratio=1), expand=True)
        grid.add_row(*panels)
        yield grid if is_wide else Group(*panels)

    def _panel(self, which: int, width: int, height: int, console: Console) -> Panel:
        text = Text(self._texts[which])
        text.append(self._last[which], style=f"bold {_STYLES[which]}" if which == self._now else None)
        seen = Text("\n").join(text.wrap(console, max(width, 1), no_wrap=False)[-height:])
        s = self._completions[which].statistics
        if self._now < which:
            caption = "comes next"
        elif not s.passes:
            caption = "reading the prompt"
        else:
            caption = f"{s.seconds:.1f} s · {s.tokens_per_second:.1f} tokens/s · {s.tokens_per_pass:.1f} a pass"
        return Panel(seen, title=_NAMES[which], subtitle=caption, border_style=_STYLES[which], height=height + _BORDERS)
