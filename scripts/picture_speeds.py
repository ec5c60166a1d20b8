"""Draw README's picture of speeds from the rows that scripts/bench_headline.py recorded.

    python scripts/picture_speeds.py

For each type of weights, place and temperature there are three bars: llama.cpp plain, llama.cpp with the best setting
of its own draft decoding, and specrun as it runs after `specrun tune`; of the pair that writes English. One file is for
light pages and one for dark ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "docs" / "benchmarks" / "raw" / "headline.json"
FOLDER = ROOT / "docs" / "pictures"

# The rows that are drawn, and what they are called. Colours are told apart by colour-blind people (Okabe and Ito).
BARS = {
    "llama.cpp, plain": ("llama.cpp, plain", "#999999"),
    "llama.cpp, best of the sweep": ("llama.cpp, its best draft setting", "#56B4E9"),
    "specrun tuned, auto": ("specrun", "#D55E00"),
}
PAIR = "real"
PLACES = {"streamed": "weights streamed from SSD", "ram": "weights in RAM"}
WEIGHTS = ("q4_k_m", "q8_0", "f16")
THEMES = {"light": ("#1f2328", "#59636e"), "dark": ("#f0f6fc", "#9198a1")}  # text, and less important text

WIDTH = 760
LEFT = 86  # of the bars
RIGHT = 215  # for the figures behind the longest bar
BAR, GAP, GROUP_GAP, HEAD = 15, 3, 13, 26
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


@dataclass(frozen=True)
class Group:
    """The bars of one table. rates: tokens/s, in the order of `BARS`."""

    weights: str
    place: str
    temperature: float
    rates: tuple[float, ...]


def groups(rows: list[dict[str, Any]]) -> list[Group]:
    """What is drawn: the tables of the pair that writes English in which all bars were measured."""
    found = []
    for place, weights, temperature in itertools.product(PLACES, WEIGHTS, (0.8, 0.0)):
        key = (PAIR, weights, place, temperature)
        own = [r for r in rows if (r["pair"], r["weights"], r["place"], r["temperature"]) == key]
        rates = {r["name"]: r["rate"] for r in own}
        if all(name in rates for name in BARS):
            found.append(Group(weights, place, temperature, tuple(rates[name] for name in BARS)))
    return found


def picture(found: list[Group], theme: str) -> str:
    """The SVG. A bar's length is its speed relative to llama.cpp's plain decoding, on one scale for all groups."""
    ink, faint = THEMES[theme]
    longest = max(rate / group.rates[0] for group in found for rate in group.rates)
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts: list[str] = []

    def text(x: float, y: float, content: str, colour: str = ink, size: int = 13, more: str = "") -> None:
        parts.append(f"<text x='{x:g}' y='{y:g}' fill='{colour}' font-size='{size}' {more}>{escape(content)}</text>")

    y = 24.0
    x = 8.0
    for label, colour in BARS.values():
        parts.append(f"<rect x='{x:g}' y='{y - 11:g}' width='12' height='12' rx='2' fill='{colour}'/>")
        text(x + 18, y, label)
        x += 46 + 7.2 * len(label)
    y += 8
    for place, title in PLACES.items():
        own = [group for group in found if group.place == place]
        if not own:
            continue
        y += HEAD
        text(8, y, title, more="font-weight='600'")
        y += 8
        for group in own:
            top = y
            for rate, (_, colour) in zip(group.rates, BARS.values(), strict=True):
                ratio = rate / group.rates[0]
                width = max(ratio * scale, 1)
                parts.append(f"<rect x='{LEFT}' y='{y:g}' width='{width:.1f}' height='{BAR}' rx='2' fill='{colour}'/>")
                speed = f"{rate:.1f} tokens/s"
                figures = speed if ratio == 1 else f"{ratio:.{1 if ratio > 2 else 2}f} times as fast, {speed}"
                text(LEFT + width + 6, y + BAR - 3, figures, faint, 12)
                y += BAR + GAP
            text(8, top + BAR * 2 - 1, group.weights.upper())
            sampling = f"T={group.temperature:g}" if group.temperature else "greedy"
            text(8, top + BAR * 3, sampling, faint, 11)
            y += GROUP_GAP
    what = "1.8 billion parameters, 2 CPU cores (AMD EPYC), the same prompts for all; docs/benchmarks/headline.md"
    text(8, y + 10, what, faint, 11)
    height = y + 22
    label = "Speeds of llama.cpp and specrun"
    shape = f"viewBox='0 0 {WIDTH} {height:g}' role='img' aria-label='{label}' {FONT}"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {shape}>"
    return "\n".join([head, f"<title>{label}</title>", *parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the two files go (default: docs/pictures)")
    folder = parser.parse_args().folder
    found = groups(json.loads(ROWS.read_text(encoding="utf-8")))
    for theme in THEMES:
        (folder / f"speeds-{theme}.svg").write_text(picture(found, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
