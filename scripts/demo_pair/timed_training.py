"""Spend a budget of processor time on lowering a loss. The rates fall to zero at its end, so the budget is a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

MATRIX_RATE = 0.04
OTHER_RATE = 6e-3
WARM_UP_STEPS = 50
DECAY_SHARE = 0.8


class AnyStage(Protocol):
    """A part of the training: up to which share of its time, and what is lowered."""

    @property
    def until(self) -> float: ...

    @property
    def loss(self) -> type[Any]: ...


Stage = TypeVar("Stage", bound=AnyStage)


def train(
    head: torch.nn.Module,
    tables: tuple[str, ...],
    stages: Sequence[Stage],
    loss_of: Callable[[np.random.Generator, Stage], tuple[Tensor, int]],
    minutes: float,
    seed: int,
    checkpoint: Path | None = None,
) -> int:
    """Lower `loss_of`, the loss of a batch and its rows, for so many minutes of processor time; returns all rows.

    Matrices are trained with Muon, norms and `tables`, which have a row for each token, with AdamW.

    tables: how the names of such parameters begin. checkpoint: a file for the state of a training that is going on; if
    it is there, the training goes on from it, and may then be given another budget.
    """
    random = np.random.default_rng(seed)
    named = [(name, parameter) for name, parameter in head.named_parameters() if parameter.requires_grad]
    matrices = [p for name, p in named if p.dim() == 2 and not name.startswith(tables)]
    others = [p for name, p in named if p.dim() != 2 or name.startswith(tables)]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01),
        torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    parts = [head, *optimizers]
    step, earlier, read = 0, 0.0, 0
    mean, mean_of = 0.0, ""
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
        stage = next(one for one in stages if share < one.until)
        with torch.autocast("cpu", torch.bfloat16):
            loss, n_rows = loss_of(random, stage)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        kind = stage.loss.__name__
        mean = 0.98 * mean + 0.02 * loss.item() if mean_of == kind else loss.item()
        mean_of = kind
        step, read = step + 1, read + n_rows
        if step % 100 == 0:
            elapsed = time.process_time() - started
            print(f"head: step {step}, {read} rows, {kind} {mean:.3f}, {elapsed:.0f} s", flush=True)
            if checkpoint is not None:
                states = {"parts": [part.state_dict() for part in parts], "random": random.bit_generator.state}
                torch.save(states | {"step": step, "seconds": elapsed, "read": read}, checkpoint)
    return read
