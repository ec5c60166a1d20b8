"""What a target computed of its texts, kept on disk: tokens, states, and its likeliest tokens, in parts of some texts.

A part is one `.npy` file that appears whole or not at all, so a process may end at any moment. Parts are mapped, not
read: training takes what it needs, however much lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specrun.errors import SpecrunError, words_of
from specrun.locations import whole_file

N_LIKELY = 64  # tokens kept of each distribution; in most positions they hold nearly all of it
_HELD_OUT_ONE_IN = 16  # texts that the head does not learn from
_LARGEST = float(np.finfo(np.float16).max)
_NAME = "texts-{:05d}.npy"

Record = NDArray[np.void]


def refused(what: str, error: OSError) -> SpecrunError:
    """What is told where the disk refuses. what: that cannot be done."""
    return SpecrunError(f"{what}: {words_of(error)}; free some room, and the same command goes on from there")


def record_type(state_width: int) -> np.dtype[np.void]:
    """The record of a token: whether a text begins with it, its state, the target's likeliest tokens after it."""
    return np.dtype(
        [
            ("token", "<i4"),
            ("begins", "?"),
            ("state", "<f2", (state_width,)),
            ("likely", "<i4", (N_LIKELY,)),
            ("chance", "<f2", (N_LIKELY,)),
        ]
    )


def records(tokens: Sequence[int], states: NDArray[np.float32], logits: NDArray[np.float32]) -> Record:
    """The records of one text.

    states: float32[n, state_width], clipped to half precision. logits: float32[n, n_vocab], after each token; kept
    are the probabilities of the `N_LIKELY` largest at temperature 1, the best first.
    """
    n_kept = min(N_LIKELY, logits.shape[1])
    made = np.zeros(len(tokens), record_type(states.shape[1]))
    made["token"], made["begins"][0] = tokens, True
    made["state"] = np.clip(states, -_LARGEST, _LARGEST)
    likely = np.argpartition(-logits, n_kept - 1, axis=1)[:, :n_kept]
    order = np.argsort(-np.take_along_axis(logits, likely, axis=1), axis=1, kind="stable")
    likely = np.take_along_axis(likely, order, axis=1)
    exponentials = np.exp(np.take_along_axis(logits, likely, axis=1) - logits.max(axis=1, keepdims=True))
    total = np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)
    made["likely"][:, :n_kept], made["chance"][:, :n_kept] = likely, exponentials / total
    return made


class Window(NamedTuple):
    """Equally long pieces of texts. After the end of a shorter text nothing is valid.

    tokens int64[n, time]; states float16[n, time, state_width]; likely int64[n, time, N_LIKELY], chance
    float32[n, time, N_LIKELY]; valid bool[n, time]; begins bool[n, time]: the first tokens of texts.
    """

    tokens: NDArray[np.int64]
    states: NDArray[np.float16]
    likely: NDArray[np.int64]
    chance: NDArray[np.float32]
    valid: NDArray[np.bool_]
    begins: NDArray[np.bool_]


@dataclass
class Records:
    """All texts in a folder, each a (part, first record, end). Whatever is no whole part is left out."""

    folder: Path
    parts: list[Any] = field(default_factory=list)  # memory-mapped records
    texts: list[tuple[int, int, int]] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Records:
        """Map what is there, up to the first part that is missing or damaged."""
        found = cls(folder)
        while (path := folder / _NAME.format(len(found.parts))).exists():
            try:
                found._take(np.load(path, mmap_mode="r"))
            except (OSError, ValueError, IndexError):
                break  # its texts are written again, in its place
        return found

    def _take(self, part: Any) -> None:
        starts = np.flatnonzero(part["begins"]).tolist()
        self.texts += [(len(self.parts), a, b) for a, b in zip(starts, [*starts[1:], len(part)], strict=True)]
        self.parts.append(part)

    def add(self, texts: Sequence[Record]) -> None:
        """Keep further texts, whole or not at all. Raises OSError."""
        path = self.folder / _NAME.format(len(self.parts))
        with whole_file(path) as file:
            np.save(file, np.concatenate(texts))
        self._take(np.load(path, mmap_mode="r"))

    @property
    def n_tokens(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def n_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def of_use(self, held_out: bool) -> list[tuple[int, int, int]]:
        """The texts that are held out, or the others. Every sixteenth is, and the first in any case."""
        return [text for i, text in enumerate(self.texts) if (i % _HELD_OUT_ONE_IN == 0) == held_out]

    def column(self, name: str, texts: Sequence[tuple[int, int, int]]) -> Any:
        """A field of the records of these texts, one text after the other."""
        return np.concatenate([self.parts[part][name][start:end] for part, start, end in texts])

    def window(self, places: Sequence[tuple[int, int, int]], length: int) -> Window:
        """Windows of `length` tokens. places: (part, first record, end of its text) of each."""
        first = self.parts[0]
        made = np.zeros((len(places), length), first.dtype)
        valid = np.zeros((len(places), length), np.bool_)
        for i, (part, start, end) in enumerate(places):
            n = min(length, end - start)
            made[i, :n], valid[i, :n] = self.parts[part][start : start + n], True
        return Window(
            made["token"].astype(np.int64),
            np.ascontiguousarray(made["state"]),
            made["likely"].astype(np.int64),
            made["chance"].astype(np.float32),
            valid,
            made["begins"] & valid,
        )
