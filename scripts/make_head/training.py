"""Trains a head on the target's probabilities, several levels deep, and measures how often both agree."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specrun.errors import SpecrunError
from specrun.long_run import Run

from .estimate import N_RANKS, Agreement
from .lessons import Lesson, Lessons
from .losses import CrossEntropy, Distance
from .network import Head
from .records import refused
from .timed import TimedTraining

LEVELS = 4  # of a draft that agreement is measured for
_BATCH_TOKENS = 2048
_LEVEL_WEIGHT = 0.85  # a level is reached only if all levels above it were right
_CHECKPOINT_SECONDS = 240.0  # so that a killed process loses less than five minutes
_MEASURED_TEXTS, _MEASURED_WINDOW = 24, 192
TABLES = ("token_embd",)


class Stage(NamedTuple):
    """A part of the training: up to which share of its time, how many levels, tokens of a window, what is lowered."""

    until: float
    depths: tuple[int, ...]
    window: int
    loss: type[CrossEntropy | Distance]


# The first level first, because the others stand on it; long windows last, because attention makes them slower.
STAGES = (
    Stage(0.15, (1, 2), 128, CrossEntropy),
    Stage(0.6, (2, 2, 3), 128, CrossEntropy),
    Stage(0.85, (2, 3, 4), 128, Distance),
    Stage(2.0, (2, 3, 5), 256, Distance),
)


def unrolled_loss(head: Head, lessons: Lessons, random: np.random.Generator, stage: Stage) -> tuple[Tensor, int]:
    """The stage's loss per token, as a mean over the levels of a draft, on windows cut from the lessons.

    Also returns the number of rows, each level counted. Each batch takes one of the stage's depths by chance, because a
    level costs as much as all of the head.
    """
    lesson = lessons.drawn(random, _BATCH_TOKENS, stage.window)
    output = head.output.to(torch.bfloat16)
    loss, weights, n_rows = torch.zeros((), device=head.device), 0.0, 0
    for level, ours in enumerate(head(lesson.read, lesson.states, int(random.choice(stage.depths)))):
        wanted, counts = _goal(lesson, level, ours.shape[1])
        goal = wanted[counts]
        weight = _LEVEL_WEIGHT**level
        goal = goal / goal.sum(dim=-1, keepdim=True)
        loss = loss + weight * stage.loss.apply(ours[counts], output, goal)
        weights += weight
        n_rows += len(goal)
    return loss / weights, n_rows


def _goal(lesson: Lesson, level: int, n: int) -> tuple[Tensor, Tensor]:
    """The goals of the first n rows of a level [texts, n, kept], and which rows count [texts, n].

    The row of a text's first state, which many models make huge, does not.
    """
    place = slice(1 + level, 1 + level + n)
    return lesson.goal[:, place], lesson.valid[:, place] & ~lesson.begins[:, :n]


@torch.no_grad()
def agreement(head: Head, lessons: Lessons) -> Agreement:
    """How head and target agree on held-out texts, by level, given the true tokens above each level."""
    same, overlap, total = [0] * LEVELS, [0.0] * LEVELS, [0] * LEVELS
    ranks = np.zeros(N_RANKS + 1, np.int64)
    output = head.output.to(torch.bfloat16)
    for lesson in lessons.held_out(_MEASURED_TEXTS, _MEASURED_WINDOW):
        with torch.autocast(head.device.type, torch.bfloat16):
            normed = head(lesson.read, lesson.states, LEVELS)
        for level, ours in enumerate(normed):
            wanted, counts = _goal(lesson, level, ours.shape[1])
            goal = wanted[counts].float()
            likeliest = lesson.likeliest[:, 1 + level : 1 + level + ours.shape[1]][counts]
            said = functional.linear(ours[counts].to(output.dtype), output).float()
            own = said.gather(1, likeliest.clamp(min=0)[:, None])
            rank = (said > own).sum(dim=-1).where(likeliest >= 0, N_RANKS).clamp(max=N_RANKS)
            same[level] += int((rank == 0).sum())
            overlap[level] += float(torch.minimum(said.softmax(dim=-1), goal).sum())
            total[level] += len(rank)
            if level == 0:
                ranks += np.bincount(rank.cpu().numpy(), minlength=N_RANKS + 1)
    n = [max(count, 1) for count in total]
    chances = [float(share) for share in ranks[:N_RANKS] / n[0]]
    pairs = zip(same, overlap, n, strict=True)
    shares = [(s / count, o / count) for s, o, count in pairs]
    return Agreement([s for s, _ in shares], [o for _, o in shares], chances)


def train(
    head: Head, lessons: Lessons, seconds: float, checkpoint: Path, run: Run, seed: int = 0
) -> list[tuple[float, Agreement]]:
    """Teach the head for so long, that of earlier runs included, and keep its state at `checkpoint` every few minutes.

    If `checkpoint` is there, the training goes on from it. Returns the agreement on held-out texts in the course of it,
    each with the seconds spent before. Raises KeyboardInterrupt, when the state was kept, and SpecrunError if it cannot
    be: the state before stays, and the training goes on from that.
    """
    training = TimedTraining(head, TABLES, seed)
    if checkpoint.exists():
        try:
            training.load(checkpoint)
        except Exception as error:  # what torch raises for a damaged file is not documented
            what = f"{checkpoint} cannot be read ({type(error).__name__})"
            raise SpecrunError(f"{what}; delete it, and the head learns anew from the texts that are there") from error
        run.note(f"going on with what was learned in {training.seconds / 60:.0f} minutes")
    curve: list[tuple[float, Agreement]] = [(at, Agreement(*facts)) for at, *facts in training.facts.get("curve", ())]

    def measure() -> None:
        curve.append((training.seconds, agreement(head, lessons)))
        training.facts["curve"] = [(at, *found) for at, found in curve]

    def keep() -> None:
        try:
            training.save(checkpoint)
        except OSError as error:
            raise refused(f"{checkpoint} cannot be written", error) from error

    kept_at = time.monotonic()

    def between() -> None:
        nonlocal kept_at
        if time.monotonic() - kept_at > _CHECKPOINT_SECONDS:
            measure()
            keep()
            kept_at = time.monotonic()
        run.expected_to_take(seconds - training.seconds).show(
            f"learning, {training.n_rows:,} rows, loss {training.loss:.3f}, held-out text: {curve[-1][1].text}"
        )

    if not curve:
        measure()
    try:
        training.go_on(STAGES, partial(unrolled_loss, head, lessons), seconds, between)
    except KeyboardInterrupt:
        keep()
        raise
    measure()
    keep()
    return curve
