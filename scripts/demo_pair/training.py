"""Train the target on text, then the draft on the target's own probabilities."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .model import CONTEXT_LENGTH, Llama

SHORT_WINDOW = 512
WARM_UP_SHARE = 0.02
DECAY_SHARE = 0.5
BATCH_TOKENS = 4096
MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
# Share of windows drawn from library code; the rest comes from the library's tests, which repeat themselves more.
LIBRARY_SHARE = 0.7

LossOf = Callable[[torch.nn.Module, np.random.Generator, int, int], Tensor]


@dataclass(frozen=True)
class Sources:
    """Training token streams [tokens]."""

    stdlib: np.ndarray
    tests: np.ndarray

    def windows(self, random: np.random.Generator, count: int, length: int) -> Tensor:
        """Return ids [count, length] cut at random places."""
        rows = []
        for _ in range(count):
            stream = self.stdlib if random.random() < LIBRARY_SHARE else self.tests
            start = int(random.integers(0, len(stream) - length))
            rows.append(stream[start : start + length])
        return torch.from_numpy(np.stack(rows))


@dataclass(frozen=True)
class Teaching:
    """What the target says after each position of some texts of one context length each.

    ids [texts, time] int16; tokens [texts, time, kept] int16, the target's most likely next tokens; probabilities, the
    same shape in float16. The other tokens share what is missing to one.
    """

    ids: Tensor
    tokens: Tensor
    probabilities: Tensor


def train(
    model: Llama,
    loss_of: LossOf,
    token_budget: int,
    seed: int,
    *,
    long_share: float,
    rate: float = 1.0,
    compiled: bool,
    label: str,
) -> float:
    """Spend token_budget tokens on lowering loss_of(model, random, batch, window); return the seconds taken.

    The last long_share of the steps see windows of the full context length, those before see short ones. rate is a
    factor of all learning rates.
    """
    random = np.random.default_rng(seed)
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and name.startswith("blk")]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or not name.startswith("blk")]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=rate * MATRIX_RATE, weight_decay=0.01),
        torch.optim.AdamW(others, lr=rate * OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    steps = max(1, token_budget // BATCH_TOKENS)
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate_schedule(steps)) for optimizer in optimizers]
    runner: torch.nn.Module = torch.compile(model, dynamic=False) if compiled else model
    started = time.monotonic()
    mean = 0.0
    for step in range(steps):
        window = CONTEXT_LENGTH if step >= (1.0 - long_share) * steps else SHORT_WINDOW
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(runner, random, BATCH_TOKENS // window, window)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        mean = loss.item() if step == 0 else 0.95 * mean + 0.05 * loss.item()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            elapsed = time.monotonic() - started
            print(f"{label}: step {step + 1}/{steps}, loss {mean:.3f}, {elapsed:.0f} s", flush=True)
    return time.monotonic() - started


def rate_schedule(steps: int) -> Callable[[int], float]:
    """Rise in a line, stay, then fall in a line to near zero, as a factor of the full learning rate."""

    def factor(step: int) -> float:
        rise = (step + 1) / max(1.0, WARM_UP_SHARE * steps)
        fall = (steps - step) / max(1.0, DECAY_SHARE * steps)
        return min(1.0, rise, fall)

    return factor


def text_loss(sources: Sources) -> LossOf:
    """Mean cross-entropy in nats per token on random windows of text."""

    def loss_of(model: torch.nn.Module, random: np.random.Generator, batch: int, window: int) -> Tensor:
        ids = sources.windows(random, batch, window + 1)
        logits = model(ids[:, :-1]).float()
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return loss_of


def teaching_loss(teaching: Teaching) -> LossOf:
    """Mean cross-entropy in nats per token against the target's probabilities, with all unlisted tokens as one."""

    def loss_of(model: torch.nn.Module, random: np.random.Generator, batch: int, window: int) -> Tensor:
        rows = torch.from_numpy(random.integers(0, len(teaching.ids), batch))
        listed = teaching.probabilities[rows, :window].float()
        unlisted = 1.0 - listed.sum(dim=-1)
        log_probabilities = model(teaching.ids[rows, :window].long()).float().log_softmax(dim=-1)
        ours = log_probabilities.gather(-1, teaching.tokens[rows, :window].long())
        ours_unlisted = (1.0 - ours.exp().sum(dim=-1)).clamp_min(1e-4).log()
        return -((listed * ours).sum(dim=-1) + unlisted.clamp_min(0.0) * ours_unlisted).mean()

    return loss_of


@torch.no_grad()
def ask_target(target: torch.nn.Module, ids: Tensor, kept: int, batch: int = 8) -> Teaching:
    """Record the probabilities of the target's `kept` most likely tokens at every position of ids [texts, time]."""
    tokens, probabilities = [], []
    for rows in ids.split(batch):
        with torch.autocast("cpu", torch.bfloat16):
            logits = target(rows)
        top = logits.float().softmax(dim=-1).topk(kept, dim=-1)
        tokens.append(top.indices.to(torch.int16))
        probabilities.append(top.values.to(torch.float16))
    return Teaching(ids.to(torch.int16), torch.cat(tokens), torch.cat(probabilities))
