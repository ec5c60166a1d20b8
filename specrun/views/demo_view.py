"""What `specrun demo` shows: two texts, side by side on a terminal while they are written, and what they tell."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from specrun.catalog.entries import Entry
from specrun.demo import N_DRAFTED, PROMPT, Comparison
from specrun.display_text import rate_text, size_text
from specrun.hardware.fit import Fit
from specrun.views import output
from specrun.views.models_table import PLACES

_NAMES = ("plain", "specrun")
_STYLES = ("yellow", "green")
_LEAST_WIDTH = 76  # columns; narrower terminals get one text above the other
_SECONDS_BETWEEN_FRAMES = 0.1  # a frame takes about 2 ms, so drawing costs both texts alike and little
_MOST_LINES = 18  # of a text; more would not be read in these seconds
_BORDERS = 2  # lines or columns of a panel's frame
_BELOW = 4  # lines that are left free for the sentence and the shell's prompt


def before(comparison: Comparison) -> str:
    """What will be seen, and what to expect of this machine."""
    residency = comparison.model.residency
    if comparison.is_streamed:
        return (
            f"of the large model {size_text(residency.resident_bytes)} stay in memory, and each pass reads the other "
            f"{size_text(residency.streamed_bytes)} from disk, in both texts alike and on the processor alone: first "
            f"plainly, then with {N_DRAFTED} drafted tokens a pass"
        )
    return (
        "specrun cannot read weights from disk in each pass here, so both texts are written from RAM, where drafts "
        "bring the least: expect 0.5 to 1.5 times plain decoding's speed. They are for models that neither the GPU nor "
        "RAM holds"
    )


def show(comparison: Comparison, steps: Iterable[tuple[int, str]]) -> None:
    """Draw the texts on a terminal while they are written, or write a line of figures for each; then the verdict."""
    console = output.stdout
    if console.is_terminal:
        _draw(comparison, steps, console)
    else:
        deque(steps, maxlen=0)
        output.write(lines(comparison))
    output.stdout.print(comparison.verdict, style="bold")


def outlook_table(expected: Sequence[tuple[Entry, Fit, float]]) -> output.FittingTable:
    """What to expect of other models, as `specrun.demo.outlook` has it."""
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
