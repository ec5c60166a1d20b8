"""Train a head on the target's probabilities, several levels deep."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .head import Head
from .head_teaching import Lessons

BATCH_TOKENS = 4096
MATRIX_RATE = 0.04
OTHER_RATE = 6e-3
WARM_UP_STEPS = 50
DECAY_SHARE = 0.8
# A level is reached only if all levels above it were right.
LEVEL_WEIGHT = 0.85
# In short trials the distance alone gave the same overlap, and the target's token was less often among the first four.
ENTROPY_SHARE = 0.075


class CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy in nats of softmax(states @ output.T) against probabilities; the output is not trained.

    states [rows, width], output [vocabulary, width], goal [rows, vocabulary]. The gradient of the logits is made in the
    forward pass and kept in bfloat16; autograd would keep several tensors as large in float32.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, output: Tensor, goal: Tensor) -> Tensor:  # type: ignore[override]
        """The loss, a single number."""
        logits = (states.to(output.dtype) @ output.T).float()
        total = logits.logsumexp(dim=-1, keepdim=True)
        loss = (total.squeeze(-1) - torch.linalg.vecdot(logits, goal.float())).mean()
        error = logits.sub_(total).exp_().sub_(goal).to(output.dtype)
        ctx.save_for_backward(error, output)
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """The gradient of the states."""
        error, output = ctx.saved_tensors
        return (error @ output) * (upstream / len(error)), None, None


class Distance(torch.autograd.Function):
    """Mean total variation distance of softmax(states @ output.T) and probabilities, and a share of the cross-entropy.

    The distance is 1 minus the overlap, the chance that sampled decoding accepts a drafted token. Far from the goal its
    gradient says little, so it comes after the cross-entropy alone. ENTROPY_SHARE of the cross-entropy stays, for the
    tokens after the first that a tree takes. Shapes as there; the output is not trained.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, output: Tensor, goal: Tensor) -> Tensor:  # type: ignore[override]
        """The loss, a single number."""
        logs = (states.to(output.dtype) @ output.T).float().log_softmax(dim=-1)
        wanted = goal.float()
        entropy = -torch.linalg.vecdot(logs, wanted)
        said = logs.exp_()
        over = (said > wanted).float()
        # Half of the sum of all differences is the sum of the positive ones.
        too_much = torch.linalg.vecdot(said, over)
        loss = too_much - torch.linalg.vecdot(wanted, over) + ENTROPY_SHARE * entropy
        error = said * (over - too_much[:, None]) + ENTROPY_SHARE * (said - wanted)
        ctx.save_for_backward(error.to(output.dtype), output)
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """The gradient of the states."""
        error, output = ctx.saved_tensors
        return (error @ output) * (upstream / len(error)), None, None


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


def train(head: Head, lessons: Lessons, minutes: float, seed: int, checkpoint: Path | None = None) -> float:
    """Teach the head for so many minutes of processor time; returns the tokens that it read, each level counted.

    The budget is a time because the rates have to fall to zero at its end. checkpoint: a file for the state of a
    training that is going on; if it is there, the training goes on from it, and may then be given another budget.
    """
    random = np.random.default_rng(seed)
    named = list(head.named_parameters())
    matrices = [p for name, p in named if p.dim() == 2 and not name.startswith("token_embd")]
    others = [p for name, p in named if p.dim() != 2 or name.startswith("token_embd")]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01),
        torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    parts = [head, *optimizers]
    step, earlier, read = 0, 0.0, 0
    mean, mean_of = 0.0, None
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        for part, state in zip(parts, saved["parts"], strict=True):
            part.load_state_dict(state)
        step, earlier, read, random.bit_generator.state = (saved[key] for key in ("step", "seconds", "read", "random"))
    started = time.process_time() - earlier
    while (spent := time.process_time() - started) < 60.0 * minutes:
        share = spent / (60.0 * minutes)
        factor = min(1.0, (step + 1) / WARM_UP_STEPS, (1.0 - share) / DECAY_SHARE)
        for optimizer, rate in zip(optimizers, (MATRIX_RATE, OTHER_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
        stage = next(one for one in STAGES if share < one.until)
        with torch.autocast("cpu", torch.bfloat16):
            loss, n_tokens = unrolled_loss(head, lessons, random, stage)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        mean = 0.98 * mean + 0.02 * loss.item() if mean_of is stage.loss else loss.item()
        mean_of = stage.loss
        step, read = step + 1, read + n_tokens
        if step % 100 == 0:
            elapsed = time.process_time() - started
            print(f"head: step {step}, {read} tokens, {stage.loss.__name__} {mean:.3f}, {elapsed:.0f} s", flush=True)
            if checkpoint is not None:
                states = {"parts": [part.state_dict() for part in parts], "random": random.bit_generator.state}
                torch.save(states | {"step": step, "seconds": elapsed, "read": read}, checkpoint)
    return read


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
