"""Records as what a head learns from: windows of texts in the head's vocabulary, on the device that trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .records import Records
from .vocabulary import Vocabulary

_BATCH = 8  # texts that are read at a time where nothing is learned


class Lesson(NamedTuple):
    """Windows of texts. Shapes are [texts, time], with one more axis where one is named.

    read: rows of the head's embedding. states [state_width]: the target's, float32. goal [kept]: the target's
    probabilities after each token, of those that the head can draft; bfloat16, their sum is 1 or less. likeliest: the
    place of the target's likeliest token among those, -1 if it is not there. valid: whether there is a token, and one
    with a goal. begins: the first tokens of texts, whose states are of no use, as many models make them huge.
    """

    read: Tensor
    states: Tensor
    goal: Tensor
    likeliest: Tensor
    valid: Tensor
    begins: Tensor


class Lessons:
    """The texts that a head learns from and those that are held out."""

    def __init__(self, records: Records, vocabulary: Vocabulary, device: torch.device) -> None:
        self.records, self.vocabulary, self.device = records, vocabulary, device
        self._read_place = vocabulary.places(vocabulary.read)
        self._kept_place = vocabulary.places(vocabulary.kept)
        self._texts = records.of_use(held_out=False)
        self._lengths = np.array([end - start for _, start, end in self._texts])

    def drawn(self, random: np.random.Generator, n_tokens: int, window: int) -> Lesson:
        """About `n_tokens` tokens in random windows; a longer text is drawn more often."""
        count = max(n_tokens // window, 1)
        chosen = random.choice(len(self._texts), count, p=self._lengths / self._lengths.sum())
        places = []
        for part, start, end in (self._texts[i] for i in chosen):
            start += int(random.integers(0, max(end - start - window, 0) + 1))
            places.append((part, start, end))
        return self._lesson(places, window)

    def held_out(self, most: int, window: int) -> Iterator[Lesson]:
        """The beginnings of held-out texts, a few at a time, `most` in all."""
        texts = self.records.of_use(held_out=True)[:most]
        for i in range(0, len(texts), _BATCH):
            yield self._lesson(texts[i : i + _BATCH], window)

    def in_order(self, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The read tokens [n] and the states float32[n, state_width] of texts without their first tokens, one text at a
        time, `most` in all; on the CPU.
        """
        for part, start, end in self._texts[:most]:
            piece = self.records.parts[part][start + 1 : end]
            states = torch.from_numpy(np.ascontiguousarray(piece["state"])).float()
            yield torch.from_numpy(self._read_place[piece["token"]]), states

    def _lesson(self, places: list[tuple[int, int, int]], window: int) -> Lesson:
        cut = self.records.window(places, window)
        kept = self._kept_place[cut.likely]
        chance = torch.from_numpy(np.where(kept < 0, 0.0, cut.chance)).to(self.device, torch.bfloat16)
        goal = torch.zeros(*kept.shape[:2], len(self.vocabulary.kept), dtype=torch.bfloat16, device=self.device)
        # Records of small vocabularies repeat a token with the chance 0.
        goal.scatter_add_(2, torch.from_numpy(np.maximum(kept, 0)).to(self.device), chance)
        has_goal = (kept >= 0).any(axis=2)
        return Lesson(
            torch.from_numpy(self._read_place[cut.tokens]).clamp(min=0).to(self.device),
            torch.from_numpy(cut.states).to(self.device).float(),
            goal,
            torch.from_numpy(kept[:, :, 0]).to(self.device),
            torch.from_numpy(cut.valid & has_goal).to(self.device),
            torch.from_numpy(cut.begins).to(self.device),
        )
