"""The simulated machines: milliseconds of a target pass and of a draft pass by their tokens, and their sources.

Where a machine is not measured, a pass is the sum over the places of weights of max(bytes / bandwidth, arithmetic). The
bandwidths: an RTX 3060 has 360 GB/s and some 25 TFLOP/s in such kernels, an RTX 4090 1,008 GB/s and 80 TFLOP/s; PCIe 4
x16 25 GB/s from pinned memory; DDR4 40 and DDR5 70 GB/s; 8 CPU cores some 0.5 TFLOP/s. A dense token of n billion
parameters takes 2 n GFLOP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from specrun.loading.placing import FirstGuesses
from specrun.speculation.planning.pass_times import ExpertGrowth

_RAW = Path(__file__).parents[2] / "docs" / "benchmarks" / "raw"
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 31, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Machine:
    """The times of one machine with one pair. Between known sizes times are interpolated, and beyond them they go on.

    target, draft: milliseconds of a pass by its tokens, behind a short text. behind: how much longer a pass over one
    token takes for each thousand tokens in the cache, as a share; other passes take as many milliseconds more.
    guesses: what specrun sees of the hardware before it has timed anything.
    """

    name: str
    source: str
    target: Mapping[int, float]
    draft: Mapping[int, float]
    behind: float = 0.05
    guesses: FirstGuesses = field(default_factory=FirstGuesses)

    def ms(self, n: int, ctx: int, is_draft: bool = False) -> float:
        """Milliseconds of a pass over `n` tokens behind `ctx` cached ones."""
        table = self.draft if is_draft else self.target
        return _at(table, n) + _at(table, 1) * self.behind * ctx / 1e3


def _at(table: Mapping[int, float], n: int) -> float:
    sizes = sorted(table)
    if n > sizes[-1]:
        low, high = sizes[-2:]
        return table[high] + max(table[high] - table[low], 0.0) / (high - low) * (n - high)
    return float(np.interp(n, sizes, [table[size] for size in sizes]))


@cache
def _rows(part: str) -> list[list[str]]:
    """The rows of a part of the page of the graphics card."""
    return [list(map(str, row)) for row in json.loads((_RAW / "gpu.json").read_text())["parts"][part]["rows"]]


def _tuned(file: str) -> dict[int, float]:
    times = json.loads((_RAW / file).read_text())["tables"]["target"]
    least = min(t["ctx"] for t in times)
    return {t["n"]: t["ms"] for t in times if t["ctx"] == least}


def _scaled(plain: float, factors: Mapping[int, float]) -> dict[int, float]:
    return {n: plain * factor for n, factor in factors.items()}


def _slow(n_ms: Mapping[int, float], streamed_ms: float) -> dict[int, float]:
    """Passes that wait for a disk `streamed_ms` while they compute."""
    return {n: max(ms, streamed_ms) + 0.05 * min(ms, streamed_ms) for n, ms in n_ms.items()}


def _split(
    gpu: float, bus: float | None, ram: float, cpu: float, compute: float, copies_from: int | None
) -> dict[int, float]:
    """Layers in VRAM and in RAM. gpu: ms to read the layers in VRAM. bus: ms to copy the others. ram, cpu: ms to read
    the others, and to compute them for a token, on the CPU. compute: ms of arithmetic of all layers for a token on the
    card.
    """
    found = {}
    for n in _SIZES:
        on_card = max(gpu, compute * n / 2) + 1.0
        if copies_from and bus and n >= copies_from:
            found[n] = on_card + max(bus, compute * n / 2)
        else:
            found[n] = on_card + max(ram, cpu * n)
    return found


# Measured on an H200 with 16 cores (docs/benchmarks/gpu.md), a target of 7 billion parameters in Q4_K. A draft pass
# over one token took 3.5 ms there, and little more over 32.
_CARD_DRAFT = {1: 3.5, 8: 3.8, 32: 4.4, 64: 5.2, 128: 7.0, 512: 14.0}
_HALF_8 = {1: 29.52, 2: 39.02, 4: 58.98, 7: 96.0, 8: 54.62, 16: 54.15, 32: 54.19, 64: 57.91, 128: 66.54, 256: 84.30}
_HALF_32 = {1: 32.25, 2: 41.77, 4: 64.08, 8: 108.5, 16: 115.6, 31: 158.0, 32: 54.89, 64: 58.30, 128: 67.16, 256: 85.09}
_HALF_NEVER = {1: 32.68, 2: 41.50, 4: 63.41, 8: 104.8, 16: 109.6, 32: 158.5, 64: 257.4, 128: 427.4, 256: 767.7}
_HALF_PAGEABLE = {1: 31.35, 2: 49.44, 4: 66.55, 8: 106.4, 16: 110.8, 31: 158.0, 32: 264.6, 64: 253.0, 128: 262.3}
_QUARTER_8 = {1: 45.66, 2: 65.35, 4: 100.1, 7: 150.0, 8: 78.52, 16: 78.92, 32: 77.47, 64: 81.33, 128: 92.34, 256: 111.6}
_QUARTER_32 = {1: 44.27, 2: 63.33, 4: 100.0, 8: 168.5, 16: 172.5, 31: 240.0, 32: 77.23, 64: 80.91, 128: 89.90}
_ALL = {1: 4.57, 2: 4.96, 4: 6.25, 8: 8.90, 16: 8.52, 32: 10.11, 64: 13.22, 128: 20.68, 256: 34.48}

# Measured on two cores (docs/benchmarks/types.md), as multiples of a pass over one token; prompts by the same page.
_TYPES = {
    "Q4_K_M": (42.0, {1: 1, 2: 1.6, 3: 2.2, 4: 2.7, 8: 4.5, 16: 5.4, 32: 9.2, 64: 17.0, 512: 136.0}),
    "Q8_0": (72.0, {1: 1, 2: 1.5, 3: 1.9, 4: 1.9, 8: 3.0, 16: 5.4, 32: 9.9, 64: 19.5, 512: 154.0}),
    "F16": (97.0, {1: 1, 2: 1.6, 3: 1.7, 4: 1.8, 8: 2.7, 16: 4.4, 32: 8.5, 64: 16.5, 512: 131.0}),
}
# The draft of the real pair, 135 million parameters in Q4_0, on the same cores.
_CORES_DRAFT = {1: 5.4, 2: 6.6, 4: 9.0, 8: 13.0, 16: 20.0, 32: 36.0, 64: 68.0, 512: 500.0}
_STREAMED = _tuned("tables-streamed-q4_k_m.json")
_COPIES_FROM_32 = FirstGuesses(copies_from=32, largest=512)
_FAR = FirstGuesses(largest=512)
_MEASURED_CARD = "docs/benchmarks/gpu.md"
_BY_ARITHMETIC = "arithmetic"


# Milliseconds of the real pair in Q8_0 on two cores without AVX-512, where kernels compute two tokens at a time and one
# that is left takes about as long as two more: medians of four rounds of chains, the draft's times by `specrun tune`.
_PAIRS = {
    1: 150.0, 2: 200, 3: 330, 4: 280, 5: 414, 6: 360, 7: 502, 8: 450, 9: 595, 10: 527, 11: 670, 12: 603, 13: 744,
    14: 690, 15: 828, 16: 765, 32: 1520, 64: 3290, 512: 26000,
}  # fmt: skip
_PAIRS_DRAFT = {1: 16.9, 2: 27.9, 4: 37.0, 8: 59.2, 16: 107.0, 32: 182.0, 64: 352.0, 512: 2800.0}


def _in_ram(kind: str) -> Machine:
    plain, factors = _TYPES[kind]
    return Machine(
        f"2 cores, 1.8B {kind} in RAM", "docs/benchmarks/types.md", _scaled(plain, factors), _CORES_DRAFT, 0.3
    )


def _streamed(kind: str, megabytes: float) -> Machine:
    """Half of the file is read from a disk of 1.6 GB/s in each pass."""
    plain, factors = _TYPES[kind]
    target = _slow(_scaled(plain, factors), megabytes / 2 / 1.6)
    return Machine(
        f"2 cores, 1.8B {kind} streamed", "docs/benchmarks/types.md and arithmetic", target, _CORES_DRAFT, 0.1, _FAR
    )


_EXPERTS = ExpertGrowth(128, 8, 0.9)

MACHINES = (
    Machine(
        "H200, 7B half in VRAM, copied from 8",
        _MEASURED_CARD,
        _HALF_8,
        _CARD_DRAFT,
        0.02,
        FirstGuesses(copies_from=8, largest=512),
    ),
    Machine("H200, 7B half in VRAM, copied from 32", _MEASURED_CARD, _HALF_32, _CARD_DRAFT, 0.02, _COPIES_FROM_32),
    Machine("H200, 7B half in VRAM, never copied", _MEASURED_CARD, _HALF_NEVER, _CARD_DRAFT, 0.02, _FAR),
    Machine("H200, 7B half in VRAM, pageable", _MEASURED_CARD, _HALF_PAGEABLE, _CARD_DRAFT, 0.02, _COPIES_FROM_32),
    Machine(
        "H200, 7B a quarter in VRAM, copied from 8",
        _MEASURED_CARD,
        _QUARTER_8,
        _CARD_DRAFT,
        0.02,
        FirstGuesses(copies_from=8, largest=512),
    ),
    Machine(
        "H200, 7B a quarter in VRAM, copied from 32", _MEASURED_CARD, _QUARTER_32, _CARD_DRAFT, 0.02, _COPIES_FROM_32
    ),
    Machine("H200, 7B in VRAM", _MEASURED_CARD, _ALL, {1: 1.2, 8: 1.5, 32: 2.0, 64: 2.6, 512: 8.0}, 0.02),
    Machine(
        "RTX 3060, 14B in VRAM",
        _BY_ARITHMETIC,
        _split(25.0, None, 0.0, 0.0, 1.1, None),
        {1: 2.2, 32: 3.2, 64: 4.5, 512: 20.0},
        0.02,
    ),
    Machine(
        "RTX 4090, 70B half in VRAM",
        _BY_ARITHMETIC,
        _split(21.0, 840.0, 300.0, 140.0, 1.75, 32),
        {1: 2.5, 32: 3.5, 64: 4.5, 512: 15.0},
        0.01,
        _COPIES_FROM_32,
    ),
    Machine(
        "RTX 3060, 70B in RAM",
        _BY_ARITHMETIC,
        _split(22.0, 1360.0, 850.0, 227.0, 5.6, 32),
        {1: 6.0, 32: 9.0, 64: 14.0, 512: 60.0},
        0.01,
        _COPIES_FROM_32,
    ),
    Machine(
        "RTX 3060, 70B streamed at 3 GB/s",
        _BY_ARITHMETIC,
        _slow(_split(22.0, 1360.0, 850.0, 227.0, 5.6, 32), 5500.0),
        {1: 6.0, 32: 9.0, 64: 14.0, 512: 60.0},
        0.01,
        _COPIES_FROM_32,
    ),
    Machine(
        "flat passes of a second",
        "1 s slept in every pass",
        {1: 1000.0, 512: 1010.0},
        {1: 5.0, 64: 12.0, 512: 60.0},
        0.0,
        _FAR,
    ),
    *(_in_ram(kind) for kind in _TYPES),
    Machine(
        "2 cores, 1.1B Q4_K_M streamed",
        "docs/benchmarks/raw/tables-streamed-q4_k_m.json",
        _STREAMED,
        {1: 0.6, 8: 2.5, 32: 6.0, 64: 12.0, 512: 95.0},
        0.1,
        _FAR,
    ),
    _streamed("Q4_K_M", 1100),
    _streamed("Q8_0", 1900),
    _streamed("F16", 3600),
    Machine("2 cores, 1.8B Q8_0 in pairs", "measured as said at _PAIRS", _PAIRS, _PAIRS_DRAFT, 0.3),
    Machine(
        "laptop of 8 cores, 7B in RAM",
        _BY_ARITHMETIC,
        {n: max(84.0, 28.0 * n) + 4 for n in _SIZES},
        {1: 7.0, 4: 8.0, 16: 32.0, 64: 128.0, 512: 1000.0},
        0.1,
    ),
    Machine(
        "mixture, 30B of 3B, in RAM",
        "ExpertGrowth(128, 8, 0.9) of 60 ms",
        {n: 60.0 * float(_EXPERTS.row(512)[n]) for n in _SIZES},
        {1: 7.0, 8: 20.0, 32: 70.0, 512: 1000.0},
        0.1,
        FirstGuesses(_EXPERTS),
    ),
)
