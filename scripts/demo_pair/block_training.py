"""Train a DSpark head on the target's probabilities."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from make_head.losses import CrossEntropy, Distance
from make_head.timed import TimedTraining
from torch import Tensor
from torch.nn import functional

from .block_head import BlockHead
from .head_teaching import Lessons

BATCH_TOKENS = 4096
# A row is reached only if all rows above it were right.
ROW_WEIGHT = 0.85


class Stage(NamedTuple):
    """A part of the training: up to which share of its time, tokens of a window, blocks in it, what is lowered."""

    until: float
    window: int
    blocks: int
    loss: type[CrossEntropy | Distance]


STAGES = (Stage(0.5, 256, 40, CrossEntropy), Stage(0.75, 256, 40, Distance), Stage(2.0, 512, 40, Distance))


def train(head: BlockHead, lessons: Lessons, minutes: float, seed: int, checkpoint: Path | None = None) -> int:
    """Teach the head for so many minutes; returns the rows that it drafted.

    checkpoint: a file for the state of a training that is going on; if it is there, the training goes on from it, and
    may then be given another budget.
    """
    training = TimedTraining(head, ("markov", "token_embd"), seed)
    if checkpoint is not None and checkpoint.exists():
        training.load(checkpoint)

    def between() -> None:
        if training.step % 100 == 0:
            done = f"step {training.step}, {training.n_rows} rows, loss {training.loss:.3f}, {training.seconds:.0f} s"
            print(f"head: {done}", flush=True)
            if checkpoint is not None:
                training.save(checkpoint)

    training.go_on(STAGES, partial(block_loss, head, lessons), 60.0 * minutes, between)
    return training.n_rows


def block_loss(head: BlockHead, lessons: Lessons, random: np.random.Generator, stage: Stage) -> tuple[Tensor, int]:
    """The stage's loss, a weighted mean over rows, on blocks at random places; also the number of rows."""
    block = head.shape.block
    count, length = BATCH_TOKENS // (stage.blocks * block), lessons.ids.shape[1]
    rows = torch.from_numpy(random.integers(0, len(lessons.ids), count))
    first = int(random.integers(0, length // stage.window)) * stage.window
    cut = Lessons(*(part[rows, first : first + stage.window] for part in lessons[:3]), lessons.output)
    roots = torch.from_numpy(random.integers(1, stage.window - block, (count, stage.blocks)))
    ours, thin = head(cut.ids, cut.states, roots)
    said = torch.cat([ours, thin], dim=-1)
    matrix = torch.cat([lessons.output, head.markov_w2.weight.to(lessons.output.dtype)], dim=1)
    goal = goal_of(cut, roots, block).view(-1, block, len(lessons.output))
    weights = [ROW_WEIGHT**row for row in range(block)]
    loss = sum(
        weight / sum(weights) * stage.loss.apply(said[:, :, row].flatten(0, 1), matrix, goal[:, row])
        for row, weight in enumerate(weights)
    )
    return loss, goal.shape[0] * block


def goal_of(lessons: Lessons, roots: Tensor, block: int) -> Tensor:
    """The target's probabilities for the rows of blocks at `roots` [texts, blocks]: [rows, vocabulary], bfloat16."""
    places = (roots[:, :, None] + torch.arange(block)).flatten(1)
    last = lessons.last.gather(1, places[:, :, None].expand(-1, -1, lessons.last.shape[-1]))
    return functional.linear(last, lessons.output).flatten(0, 1).float().softmax(dim=-1).to(torch.bfloat16)


@torch.no_grad()
def agreement(lessons: Lessons, head: BlockHead, first: int = 1, step: int = 5) -> list[tuple[float, float]]:
    """For each row: how often head and target rank the same token first, and the mean overlap of the distributions.

    With roots at `first`, first + step, ..., given the true token before each row.
    """
    block = head.shape.block
    same, overlap, total = torch.zeros(block), torch.zeros(block), 0
    for index in range(0, len(lessons.ids), 8):
        batch = Lessons(*(part[index : index + 8] for part in lessons[:3]), lessons.output)
        roots = torch.arange(first, batch.ids.shape[1] - block, step).expand(len(batch.ids), -1)
        goal = goal_of(batch, roots, block).float()
        with torch.autocast("cpu", torch.bfloat16):
            ours, thin = head(batch.ids, batch.states, roots)
            logits = functional.linear(ours.to(lessons.output.dtype), lessons.output) + head.markov_w2(thin)
        said = logits.flatten(0, 2).float()
        same += (said.argmax(dim=-1) == goal.argmax(dim=-1)).float().view(-1, block).sum(dim=0)
        overlap += torch.minimum(said.softmax(dim=-1), goal).sum(dim=-1).view(-1, block).sum(dim=0)
        total += roots.numel()
    return [(float(s) / total, float(o) / total) for s, o in zip(same, overlap, strict=True)]
