"""Whether two models write the same: logits of a text, and greedy texts, both through llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.llama import LlamaModel
from specrun.llama.batch import Batch, committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings

N_TEXT = 200
N_GREEDY = 64
PROMPTS = ("def main():\n    ", "import os\n\n\ndef read_config(path):\n", "The first thing to know is that")
TEXT = '''"""Read a table of measurements and report on them."""

from __future__ import annotations

import csv
from pathlib import Path


class Table:
    """Rows of numbers, each with a name."""

    def __init__(self, path: Path) -> None:
        self.rows: dict[str, list[float]] = {}
        with path.open(newline="") as file:
            for name, *values in csv.reader(file):
                if name.startswith("#"):
                    continue
                self.rows[name] = [float(value) for value in values]

    def mean(self, name: str) -> float:
        """The mean of one row; raises KeyError if there is no such row."""
        row = self.rows[name]
        if not row:
            raise ValueError(f"row {name!r} is empty")
        return sum(row) / len(row)

    def longest(self) -> str:
        """Name of the row with the most values. It is not the row with the largest sum, as one might think."""
        return max(self.rows, key=lambda name: len(self.rows[name]))
'''


@dataclass(frozen=True)
class Readings:
    """What a model makes of the text and the prompts.

    logits: float32[tokens of the text, n_vocab]. greedy: a text for each prompt. gaps: for each token of those, by how
    much its logit leads the next best.
    """

    logits: NDArray[np.float32]
    greedy: list[list[int]]
    gaps: list[list[float]]


@dataclass(frozen=True)
class Report:
    """How a wide model compares with its source.

    difference: the largest difference of a logit. spread: standard deviation of the source's logits. added: largest
    logit of a token that only the wide model has, or None. n_added: how often such a token was the best. partings: for
    each greedy text that differs, the token where it does and the gap between the source's two best logits there.
    """

    n_tokens: int
    difference: float
    spread: float
    n_same_best: int
    added: float | None
    n_added: int
    partings: list[tuple[int, float]]

    def lines(self) -> list[str]:
        """The report in words."""
        lines = [
            f"check: {self.n_tokens} tokens of text: largest difference of a logit {self.difference:.3g} "
            f"(logits spread by {self.spread:.3g}), same best token at {self.n_same_best}"
        ]
        if self.added is not None:
            lines.append(f"check: largest logit of an added token: {self.added:.3g}")
        n_same = len(PROMPTS) - len(self.partings)
        lines.append(f"check: greedy texts of {N_GREEDY} tokens: {n_same} of {len(PROMPTS)} the same")
        lines += [f"check: one parts at token {at}, where the gap was {gap:.3g}" for at, gap in self.partings]
        return lines

    def failure(self, tolerance: float) -> str | None:
        """Why the two do not write the same, or None. tolerance: of logits, in units of their spread."""
        if not self.difference <= tolerance * self.spread:
            return f"logits differ by {self.difference:.3g}, more than rounding explains"
        if any(gap > self.difference for _, gap in self.partings):
            return "a greedy text differs where the best token leads by more than the logits differ"
        if self.n_added:
            return f"an added token was the best {self.n_added} times"
        return None


def compare(source: Path, wide: Path, n_threads: int) -> Report:
    """Let both models read the text and write after the prompts."""
    mine, theirs = _read(source, n_threads), _read(wide, n_threads)
    n_vocab = mine.logits.shape[1]
    added = theirs.logits[:, n_vocab:]
    best = theirs.logits.argmax(axis=1)
    n_added = int((best >= n_vocab).sum()) + sum(token >= n_vocab for tokens in theirs.greedy for token in tokens)
    partings = []
    for one, gaps, other in zip(mine.greedy, mine.gaps, theirs.greedy, strict=True):
        if one != other:
            at = next(i for i in range(N_GREEDY) if one[i] != other[i])
            partings.append((at, gaps[at]))
    return Report(
        n_tokens=len(mine.logits),
        difference=float(np.abs(mine.logits - theirs.logits[:, :n_vocab]).max()),
        spread=float(mine.logits.std()),
        n_same_best=int((mine.logits.argmax(axis=1) == best).sum()),
        added=float(added.max()) if added.size else None,
        n_added=n_added,
        partings=partings,
    )


def _read(path: Path, n_threads: int) -> Readings:
    with LlamaModel(path) as model:
        text = model.tokenize(TEXT, add_special=True)[:N_TEXT]
        prompts = [model.tokenize(prompt, add_special=True) for prompt in PROMPTS]
        n_batch = max(len(tokens) for tokens in [text, *prompts])
        config = ContextConfig(
            n_ctx=n_batch + N_GREEDY,
            n_seq_max=1,
            n_batch=n_batch,
            n_outputs=n_batch,
            settings=LlamaSettings(threads=n_threads, type_v="bf16"),
        )
        with LlamaContext(model, config) as context:
            batch = committed_tokens(text, 0, 1, n_outputs=1)
            every = Batch(batch.tokens, batch.positions, batch.first_seq, batch.n_seq, np.ones(len(text), np.bool_))
            logits = context.decode(every).copy()
            written = [_greedy(context, prompt) for prompt in prompts]
    return Readings(logits, [tokens for tokens, _ in written], [gaps for _, gaps in written])


def _greedy(context: LlamaContext, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The likeliest N_GREEDY tokens after `prompt`, one by one, and the lead of each."""
    context.remove(ALL_SEQUENCES, 0)
    tokens, gaps, fresh = list(prompt), list[float](), prompt
    for _ in range(N_GREEDY):
        row = context.decode(committed_tokens(fresh, len(tokens) - len(fresh), 1, n_outputs=1))[0]
        second, first = np.partition(row, -2)[-2:]
        fresh = [int(row.argmax())]
        tokens += fresh
        gaps.append(float(first - second))
    return tokens[len(prompt) :], gaps
