"""An EAGLE-3 head for a model of `model.py`, laid out the way llama.cpp expects it.

One layer that reads, at each position, the embedding of a token and a state: of committed text the target's own hidden
states before three of its layers, fused by `fc`; of drafted text the state that the head itself had one level above.
Embedding and output are the target's. Source: Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language
Models via Training-Time Test" (2025); the layout is that of llama.cpp's src/models/eagle3.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .model import NORM_EPSILON, Llama, rope_angles, rotate


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head. width is the target's; target_layers: the states before these layers are read (exactly 3)."""

    width: int
    heads: int
    feed_forward: int
    target_layers: tuple[int, ...]
    vocabulary: int

    @property
    def head_width(self) -> int:
        """Width of one attention head; there are as many key/value heads as query heads."""
        return self.width // self.heads


class HeadBlock(nn.Module):
    """The layer: attention over tokens and states side by side, then a SwiGLU feed-forward part."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.attn_norm = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.attn_norm_2 = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.attn_q = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.attn_v = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, tokens: Tensor, states: Tensor, angles: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        """States one level down [batch, time, width] of token embeddings and states of the same shape.

        seen: keys and values of the levels above, to which this level's are added. A row attends to the first level up
        to its own place, which is the committed text, and to its own place in all levels, which is its draft.
        """
        batch, time, width = states.shape
        heads = (batch, time, self.shape.heads, self.shape.head_width)
        x = torch.cat([self.attn_norm(tokens), self.attn_norm_2(states)], dim=-1)
        q = rotate(self.attn_q(x).view(heads).transpose(1, 2), angles) * self.shape.head_width**-0.5
        k = rotate(self.attn_k(x).view(heads).transpose(1, 2), angles)
        v = self.attn_v(x).view(heads).transpose(1, 2)
        seen.append((k, v))
        committed, drafted = seen[0], seen[1:]
        later = torch.ones(time, time, dtype=torch.bool, device=q.device).triu(1)
        scores = [(q @ committed[0].transpose(2, 3)).float().masked_fill(later, -torch.inf)]
        scores += [(q * keys).sum(dim=-1, keepdim=True).float() for keys, _ in drafted]
        weights = torch.cat(scores, dim=-1).softmax(dim=-1).to(v.dtype)
        mixed = weights[..., :time] @ committed[1]
        for index, (_, values) in enumerate(drafted):
            mixed = mixed + weights[..., time + index, None] * values
        x = states + self.attn_output(mixed.transpose(1, 2).reshape(batch, time, width))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


class Head(nn.Module):
    """An EAGLE-3 head. Its parameters have the names of llama.cpp's tensors; the embedding is the target's, frozen."""

    angles: Tensor
    embedding: Tensor

    def __init__(self, shape: HeadShape, target: Llama) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.target_layers) * shape.width, shape.width, bias=False)
        self.blk = nn.ModuleList([HeadBlock(shape)])
        self.output_norm = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.register_buffer("angles", rope_angles(shape.head_width), persistent=False)
        self.register_buffer("embedding", target.token_embd.weight.detach().clone(), persistent=False)
        self.initialise(target)

    @torch.no_grad()
    def initialise(self, target: Llama) -> None:
        """Begin as the target's last layer without its attention, on the state before that layer."""
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 / math.sqrt(3.0))
        width, block, last = self.shape.width, self.blk[0], target.blk[-1]
        self.fc.weight.zero_()
        self.fc.weight[:, -width:] = torch.eye(width)
        block.attn_output.weight.zero_()
        block.ffn_down.weight.zero_()
        copied = min(self.shape.feed_forward, target.shape.feed_forward)
        block.ffn_gate.weight[:copied] = last.ffn_gate.weight[:copied]
        block.ffn_up.weight[:copied] = last.ffn_up.weight[:copied]
        block.ffn_down.weight[:, :copied] = last.ffn_down.weight[:, :copied]
        block.ffn_norm.weight.copy_(last.ffn_norm.weight)
        self.output_norm.weight.copy_(target.output_norm.weight)

    def forward(self, ids: Tensor, states: Tensor, levels: int) -> list[Tensor]:
        """Logits of each level [batch, time - levels, vocabulary] for ids [batch, time].

        states [batch, time, 3 * width]: the target's, see `Llama.read`. Row r of level l (from 0) knows the states up
        to r and the true tokens up to r + 1 + l, and drafts what the target says at r + 1 + l.
        """
        rows = ids.shape[1] - levels
        hidden = self.fc(states[:, :rows])
        seen: list[tuple[Tensor, Tensor]] = []
        logits = []
        for level in range(levels):
            tokens = functional.embedding(ids[:, 1 + level : 1 + level + rows], self.embedding)
            hidden = self.blk[0](tokens, hidden, self.angles[level : level + rows], seen)
            logits.append(functional.linear(self.output_norm(hidden), self.embedding))
        return logits

    def parameter_count(self) -> int:
        """Number of trained weights."""
        return sum(parameter.numel() for parameter in self.parameters())
