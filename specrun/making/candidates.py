"""The drafts that can be made from a target: with fewer bits per weight, fewer layers, or both.

llama.cpp's quantizer writes them in a child process, so that it can be stopped at any time and its output is captured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specrun.errors import UsageError
from specrun.hardware.cpu import usable_cores
from specrun.processes import child_process

SAME = "same"  # the type that keeps the target's own quantization
# Names of llama.cpp's quantize tool -> llama_ftype (include/llama.h). Types that need an importance matrix are left
# out, because users rarely have such a matrix.
FILE_TYPES: dict[str, int | None] = {
    "q2_k": 10, "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "iq3_s": 26, "q4_0": 2, "q4_1": 3, "q4_k_s": 14, "q4_k_m": 15,
    "iq4_nl": 25, "iq4_xs": 30, "q5_0": 8, "q5_1": 9, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "q8_0": 7, SAME: None,
}  # fmt: skip
DEFAULT_TYPES = ("q2_k", "q3_k_s", "q4_0")
DEFAULT_SHARES = (1.0, 0.75, 0.5)  # of the target's layers


@dataclass(frozen=True)
class Candidate:
    """A draft that could be made."""

    type: str  # a key of FILE_TYPES
    kept: tuple[int, ...]  # indices of the target's layers that the draft has, ascending
    n_layers: int  # of the target

    @property
    def dropped(self) -> list[int]:
        """Indices of the layers that are left out, ascending."""
        return sorted(set(range(self.n_layers)) - set(self.kept))

    @property
    def name(self) -> str:
        """For people, e.g. `q2_k, 6 of 8 layers`; empty for the target itself."""
        layers = f"{len(self.kept)} of {self.n_layers} layers" if self.dropped else ""
        return ", ".join(part for part in ("" if self.type == SAME else self.type, layers) if part)

    @property
    def file_name(self) -> str:
        """Name of the draft's file."""
        return f"draft-{self.type}-{len(self.kept)}of{self.n_layers}.gguf"

    def write(self, target: Path, destination: Path | None, wait: Callable[[], None]) -> int:
        """Write the draft, unless `destination` is None, and return the bytes of its weights.

        wait: called ten times a second; it may raise to stop the quantizer. An incomplete file may then remain. Raises
        LlamaError if the quantizer refuses the candidate.
        """
        debug = logging.getLogger("specrun.llama").isEnabledFor(logging.DEBUG)
        request = {
            "source": str(target),
            "destination": str(destination) if destination else None,
            "file_type": FILE_TYPES[self.type],
            "dropped": self.dropped,
            "n_threads": usable_cores(),
            "debug": debug,
        }
        return int(child_process.answer("specrun.llama.quantizer", request, "the quantizer", wait, debug)["bytes"])


def kept_layers(n_layers: int, share: float) -> tuple[int, ...]:
    """Indices of about `share` of the layers: the first, the last, and others evenly spaced between them."""
    n_kept = min(n_layers, max(2, round(share * n_layers)))
    return tuple(int(i) for i in np.linspace(0, n_layers - 1, n_kept).round())


def candidates(types: Sequence[str], shares: Sequence[float], n_layers: int) -> list[Candidate]:
    """Every type with every share of the layers, the most layers first; never the target itself."""
    selections = sorted({kept_layers(n_layers, share) for share in shares}, key=len, reverse=True)
    combinations = (Candidate(name, kept, n_layers) for name in types for kept in selections)
    return [candidate for candidate in combinations if candidate.name]


def parse_types(text: str) -> tuple[str, ...]:
    """Parse `--types`, e.g. `q2_k,q4_0`. Raises UsageError."""
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    for name in names:
        if name not in FILE_TYPES:
            raise UsageError(f"--types has {name!r}; choose among {', '.join(FILE_TYPES)}")
    return names


def parse_shares(text: str) -> tuple[float, ...]:
    """Parse `--keep-layers`, e.g. `1,0.5`. Raises UsageError."""
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 < share <= 1 for share in shares):
        raise UsageError(f"--keep-layers must be a list of shares above 0 and up to 1, such as 1,0.5; got {text}")
    return shares
