"""Train a head on the target's probabilities, several levels deep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .head import Head
from .model import Llama
from .training import LossOf, Sources

# Shares of the windows that come from texts which the target wrote greedily and at temperature 0.8; the rest is code of
# the library. Greedy texts repeat themselves, so they teach less.
GREEDY_SHARE = 0.15
SAMPLED_SHARE = 0.4
# A level is reached only if all levels above it were right.
LEVEL_WEIGHT = 0.85


@dataclass(frozen=True)
class Texts:
    """What the head learns on: the library, and texts [count, time] of the target, greedy and at temperature 0.8."""

    sources: Sources
    greedy: Tensor
    sampled: Tensor

    def windows(self, random: np.random.Generator, count: int, length: int) -> Tensor:
        """Return ids [count, length]: windows of the library, and beginnings of written texts."""
        rows = []
        for _ in range(count):
            kind = random.random()
            if kind < GREEDY_SHARE + SAMPLED_SHARE:
                written = self.greedy if kind < GREEDY_SHARE else self.sampled
                rows.append(written[int(random.integers(0, len(written))), :length])
            else:
                rows.append(self.sources.windows(random, 1, length)[0])
        return torch.stack(rows)


def unrolled_loss(target: Llama, texts: Texts, depths: Sequence[int]) -> LossOf:
    """Mean cross-entropy in nats per token against the target's probabilities, over the levels of a draft.

    depths: how many levels; each batch takes one of these numbers by chance, because a level costs as much as all of
    the head, and few deep batches are enough to learn what a state of the head's own looks like.
    """

    def loss_of(head: torch.nn.Module, random: np.random.Generator, batch: int, window: int) -> Tensor:
        assert isinstance(head, Head)
        ids = texts.windows(random, batch, window)
        with torch.no_grad():
            states, logits = target.read(ids, head.shape.target_layers)
            goal = logits.float().softmax(dim=-1)
        loss, weights = torch.zeros(()), 0.0
        for level, ours in enumerate(head(ids, states, int(random.choice(depths)))):
            wanted = goal[:, 1 + level : 1 + level + ours.shape[1]]
            weight = LEVEL_WEIGHT**level
            loss = loss + weight * functional.cross_entropy(ours.float().flatten(0, 1), wanted.flatten(0, 1))
            weights += weight
        return loss / weights

    return loss_of


@torch.no_grad()
def agreement(target: Llama, head: Head, rows: Tensor, levels: int, first: int = 0) -> list[tuple[float, float]]:
    """For each level: how often head and target rank the same token first, and the mean overlap of the distributions.

    On ids [count, time], at the places from `first` on, given the true tokens above each level.
    """
    same, overlap, total = [0] * levels, [0.0] * levels, 0
    for batch in rows.split(8):
        states, logits = target.read(batch, head.shape.target_layers)
        for level, ours in enumerate(head(batch, states, levels)):
            theirs = logits[:, 1 + level : 1 + level + ours.shape[1]][:, first:]
            ours = ours[:, first:]
            same[level] += int((ours.argmax(dim=-1) == theirs.argmax(dim=-1)).sum())
            overlap[level] += float(torch.minimum(ours.softmax(dim=-1), theirs.softmax(dim=-1)).sum())
        total += ours.shape[0] * ours.shape[1]
    return [(s / total, o / total) for s, o in zip(same, overlap, strict=True)]
