"""Train a head on the target's probabilities, several levels deep."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from . import timed_training
from .head import Head
from .head_teaching import Lessons
from .losses import CrossEntropy, Distance

BATCH_TOKENS = 4096
# A level is reached only if all levels above it were right.
LEVEL_WEIGHT = 0.85


class Stage(NamedTuple):
    """A part of the training: up to which share of its time, how many levels, tokens of a window, what is lowered."""

    until: float
    depths: tuple[int, ...]
    window: int
    loss: type[CrossEntropy | Distance]


# The first level first, because the others stand on it; long windows last, because attention makes them slower.
STAGES = (
    Stage(0.15, (1, 2), 256, CrossEntropy),
    Stage(0.6, (2, 2, 3), 256, CrossEntropy),
    Stage(0.85, (2, 3, 4), 256, Distance),
    Stage(2.0, (2, 3, 5), 512, Distance),
)


def train(head: Head, lessons: Lessons, minutes: float, seed: int, checkpoint: Path | None = None) -> int:
    """Teach the head for so many minutes of processor time; returns the tokens that it read, each level counted.

    checkpoint: as in `timed_training.train`.
    """
    loss_of = partial(unrolled_loss, head, lessons)
    return timed_training.train(head, ("token_embd",), STAGES, loss_of, minutes, seed, checkpoint)


def unrolled_loss(head: Head, lessons: Lessons, random: np.random.Generator, stage: Stage) -> tuple[Tensor, int]:
    """The stage's loss per token, as a mean over the levels of a draft, on windows cut from the lessons.

    Also returns the number of tokens read, each level counted. Each batch takes one of the stage's depths by chance,
    because a level costs as much as all of the head.
    """
    count, length = BATCH_TOKENS // stage.window, lessons.ids.shape[1]
    rows = torch.from_numpy(random.integers(0, len(lessons.ids), count))
    first = int(random.integers(0, length // stage.window)) * stage.window
    cut = Lessons(*(part[rows, first : first + stage.window] for part in lessons[:3]), lessons.output)
    goal = cut.goal()
    loss, weights, n_tokens = torch.zeros(()), 0.0, 0
    for level, ours in enumerate(head(cut.ids, cut.states, int(random.choice(stage.depths)))):
        wanted = goal[:, 1 + level : 1 + level + ours.shape[1]]
        weight = LEVEL_WEIGHT**level
        loss = loss + weight * stage.loss.apply(ours.flatten(0, 1), lessons.output, wanted.flatten(0, 1))
        weights += weight
        n_tokens += ours.shape[0] * ours.shape[1]
    return loss / weights, n_tokens


@torch.no_grad()
def agreement(lessons: Lessons, head: Head, levels: int, first: int = 0) -> list[tuple[float, float]]:
    """For each level: how often head and target rank the same token first, and the mean overlap of the distributions.

    At the places from `first` on, given the true tokens above each level.
    """
    same, overlap, total = [0] * levels, [0.0] * levels, 0
    for index in range(0, len(lessons.ids), 8):
        batch = Lessons(*(part[index : index + 8] for part in lessons[:3]), lessons.output)
        goal = batch.goal()
        with torch.autocast("cpu", torch.bfloat16):
            normed = head(batch.ids, batch.states, levels)
        for level, ours in enumerate(normed):
            theirs = goal[:, 1 + level : 1 + level + ours.shape[1]][:, first:].float()
            said = functional.linear(ours[:, first:].to(lessons.output.dtype), lessons.output).float()
            same[level] += int((said.argmax(dim=-1) == theirs.argmax(dim=-1)).sum())
            overlap[level] += float(torch.minimum(said.softmax(dim=-1), theirs).sum())
        total += ours.shape[0] * (ours.shape[1] - first)
    return [(s / total, o / total) for s, o in zip(same, overlap, strict=True)]
