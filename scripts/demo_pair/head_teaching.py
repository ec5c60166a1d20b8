"""What a target says about texts, kept so that a head can learn from them many times over."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .model import Llama

_BATCH = 16


class Lessons(NamedTuple):
    """Texts of one length with what the target computed of them.

    ids [texts, time]; states [texts, time, 3 * width] bfloat16, see `Llama.read`; last [texts, time, width] bfloat16,
    the normed states after the last layer, from which `output` [vocabulary, width] makes the logits.
    """

    ids: Tensor
    states: Tensor
    last: Tensor
    output: Tensor

    def goal(self) -> Tensor:
        """The target's probabilities after each token [texts, time, vocabulary], bfloat16."""
        logits = functional.linear(self.last, self.output)
        return logits.float().softmax(dim=-1).to(torch.bfloat16)


@torch.no_grad()
def lessons_of(target: Llama, ids: Tensor, layers: tuple[int, ...]) -> Lessons:
    """Let the target read ids [texts, time]. layers: those before which the head reads states."""
    width = target.shape.width
    states = torch.empty(*ids.shape, len(layers) * width, dtype=torch.bfloat16)
    last = torch.empty(*ids.shape, width, dtype=torch.bfloat16)
    for first in range(0, len(ids), _BATCH):
        batch = slice(first, first + _BATCH)
        with torch.autocast("cpu", torch.bfloat16):
            states[batch], last[batch] = target.read(ids[batch], layers)
    return Lessons(ids, states, last, target.token_embd.weight.detach().to(torch.bfloat16))
