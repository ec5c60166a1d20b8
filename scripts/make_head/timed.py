"""Spends a budget of time on lowering a loss. The rates fall to zero at its end, so the budget is a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from specrun.locations import whole_file

_MATRIX_RATE, _OTHER_RATE = 0.04, 6e-3  # chosen on the embedded target (docs/embedded-pair.md)
_WARM_UP_STEPS = 50
_DECAY_SHARE = 0.8  # of the time, in which the rates fall


class AnyStage(Protocol):
    """A part of the training: up to which share of its time, and what is lowered."""

    @property
    def until(self) -> float: ...

    @property
    def loss(self) -> type[Any]: ...


Stage = TypeVar("Stage", bound=AnyStage)


class TimedTraining:
    """A training that can be saved between any two steps and go on from there.

    Matrices are trained with Muon; norms, and tables with a row for each token, with AdamW. tables: how the names of
    such tables begin. step, seconds: done and spent so far. n_rows: rows of logits that were compared so far, of all
    levels. loss: its running mean. facts: what else is to be kept with the state.
    """

    def __init__(self, module: torch.nn.Module, tables: tuple[str, ...], seed: int) -> None:
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self._others = [p for name, p in named if p.dim() != 2 or name.startswith(tables)]
        matrices = [p for name, p in named if p.dim() == 2 and not name.startswith(tables)]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=_MATRIX_RATE, weight_decay=0.01),
            torch.optim.AdamW(self._others, lr=_OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self._parts = [module, *self._optimizers]
        self._random = np.random.default_rng(seed)
        self.device = named[0][1].device
        self.step, self.seconds, self.n_rows, self.loss = 0, 0.0, 0, 0.0
        self._loss_of = ""
        self.facts: dict[str, Any] = {}

    def go_on(
        self,
        stages: Sequence[Stage],
        loss_of: Callable[[np.random.Generator, Stage], tuple[Tensor, int]],
        seconds: float,
        between: Callable[[], None],
    ) -> None:
        """Train until `seconds` are spent, those of earlier runs included.

        loss_of: the loss of a batch, and its rows. between: called after each step; its time counts as well.
        """
        earlier, started = self.seconds, time.monotonic()
        while self.seconds < seconds:
            share = self.seconds / seconds
            factor = min(1.0, (self.step + 1) / _WARM_UP_STEPS, (1.0 - share) / _DECAY_SHARE)
            for optimizer, rate in zip(self._optimizers, (_MATRIX_RATE, _OTHER_RATE), strict=True):
                optimizer.param_groups[0]["lr"] = rate * factor
            self._one_step(next(stage for stage in stages if share < stage.until), loss_of)
            self.seconds = earlier + time.monotonic() - started
            between()

    def _one_step(self, stage: Stage, loss_of: Callable[[np.random.Generator, Stage], tuple[Tensor, int]]) -> None:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss, n_rows = loss_of(self._random, stage)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._others, 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        kind, value = stage.loss.__name__, loss.item()
        self.loss = 0.98 * self.loss + 0.02 * value if self._loss_of == kind else value
        self._loss_of = kind
        self.step, self.n_rows = self.step + 1, self.n_rows + n_rows

    def save(self, path: Path) -> None:
        """Keep the state at `path`, whole or not at all. Raises OSError."""
        state = {"parts": [part.state_dict() for part in self._parts], "random": self._random.bit_generator.state}
        numbers = {name: getattr(self, name) for name in ("step", "seconds", "n_rows", "loss", "facts")}
        with whole_file(path) as file:
            try:
                torch.save(state | numbers | {"loss_of": self._loss_of}, file)
            except RuntimeError as error:  # how torch tells of a full disk
                raise OSError(None, str(error).splitlines()[0], str(path)) from error

    def load(self, path: Path) -> None:
        """Go on from what `save` kept. Raises OSError, or whatever torch makes of a damaged file."""
        saved = torch.load(path, map_location=self.device, weights_only=True)
        for part, state in zip(self._parts, saved["parts"], strict=True):
            part.load_state_dict(state)
        self._random.bit_generator.state, self._loss_of = saved["random"], saved["loss_of"]
        for name in ("step", "seconds", "n_rows", "loss", "facts"):
            setattr(self, name, saved[name])
