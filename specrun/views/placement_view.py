"""Draws where the layers of target and draft lie, one line for each device."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from specrun.display_text import size_text
from specrun.hardware.placement import PartName, Placement, Site

# The letter of each part, used where the output is not a terminal, and its colour on a terminal.
_STYLES: dict[PartName, tuple[str, str]] = {
    "draft": ("d", "green"),
    "target": ("t", "blue"),
    "experts": ("e", "cyan"),
    "KV cache": ("k", "magenta"),
    "compute": ("c", "yellow"),
}
_WIDTH = 32  # characters of a bar


class PlacementView:
    """A rich renderable of a placement: for each device a bar and the size of its parts; letters off a terminal."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table.grid(padding=(0, 1))
        for site in (*self._placement.gpus, self._placement.ram):
            table.add_row(
                Text(site.name),
                bar(site, blocks=console.is_terminal and not options.ascii_only),
                Text(f"{size_text(site.used_bytes)} of {size_text(site.free_bytes)}"),
                Text(", ".join(f"{name} {size_text(site.parts[name])}" for name in _STYLES if name in site.parts)),
            )
        yield table
        where, regime = _target(self._placement), self._placement.regime
        yield Text(where if where.endswith(regime) else f"{where}, {regime}")


def layers(placement: Placement) -> str:
    """A sentence that says where the target's layers lie, and the draft."""
    return f"{_target(placement)}{'; draft in VRAM' if placement.draft_in_vram else ''}"


def _target(placement: Placement) -> str:
    n_layers = len(placement.layer_gpus) - 1
    if not placement.n_gpu_layers:
        return f"target: all {n_layers} layers in RAM"
    in_vram = min(placement.n_gpu_layers, n_layers + 1) - 1
    text = f"target: {in_vram} of {n_layers} layers and the output in VRAM"
    if placement.request.target.is_moe and placement.n_cpu_moe:
        text += f", experts of {placement.n_cpu_moe} layers in RAM"
    if hosts := [site.description for site in placement.gpus if site.is_remote and site.parts]:
        text += f" or on {', '.join(hosts)}"
    return text


def bar(site: Site, blocks: bool) -> Text:
    """How full a device is, as blocks or letters. Each part gets a character; what does not fit is cut off."""
    text = Text()
    for name, (letter, colour) in _STYLES.items():
        share = site.parts.get(name, 0) / max(site.free_bytes, 1)
        count = min(max(round(share * _WIDTH), 1 if share else 0), _WIDTH - len(text))
        text.append(("\u2588" if blocks else letter) * count, style=colour)
    rest = _WIDTH - len(text)
    text.append(("\u2591" if blocks else ".") * rest, style="dim")
    return text
