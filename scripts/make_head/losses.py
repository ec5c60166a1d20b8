"""What a head lowers: distances of what it says from the target's probabilities.

Each is a mean over rows of states [rows, width], for the logits states @ output.T with output [vocabulary, width] and
the probabilities `goal` [rows, vocabulary]. The gradient of the logits is made in the forward pass and kept in the type
of `output`; autograd would keep several tensors as large in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# In short trials the distance alone gave the same overlap, and the target's token was less often among the first four.
ENTROPY_SHARE = 0.075


class _Loss(torch.autograd.Function):
    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """The gradients of states and output."""
        error, states, output = ctx.saved_tensors
        scale = upstream / len(error)
        of_output = (error.T @ states).float() * scale if ctx.needs_input_grad[1] else None
        return (error @ output) * scale, of_output, None


class CrossEntropy(_Loss):
    """Cross-entropy in nats."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, output: Tensor, goal: Tensor) -> Tensor:
        """The loss, a single number."""
        states = states.to(output.dtype)
        logits = (states @ output.T).float()
        total = logits.logsumexp(dim=-1, keepdim=True)
        loss = (total.squeeze(-1) - torch.linalg.vecdot(logits, goal.float())).mean()
        error = logits.sub_(total).exp_().sub_(goal).to(output.dtype)
        ctx.save_for_backward(error, states, output)
        return loss


class Distance(_Loss):
    """Total variation distance, and a share of the cross-entropy.

    The distance is 1 minus the overlap, the chance that sampled decoding accepts a drafted token. Far from the goal its
    gradient says little, so it comes after the cross-entropy alone. ENTROPY_SHARE of the cross-entropy stays, for the
    tokens after the first that a tree takes.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, output: Tensor, goal: Tensor) -> Tensor:
        """The loss, a single number."""
        states = states.to(output.dtype)
        logs = (states @ output.T).float().log_softmax(dim=-1)
        wanted = goal.float()
        entropy = -torch.linalg.vecdot(logs, wanted)
        said = logs.exp_()
        over = (said > wanted).float()
        # Half of the sum of all differences is the sum of the positive ones.
        too_much = torch.linalg.vecdot(said, over)
        loss = too_much - torch.linalg.vecdot(wanted, over) + ENTROPY_SHARE * entropy
        error = said * (over - too_much[:, None]) + ENTROPY_SHARE * (said - wanted)
        ctx.save_for_backward(error.to(output.dtype), states, output)
        return loss.mean()
