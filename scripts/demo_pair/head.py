"""An EAGLE-3 head for a model of `model.py`, laid out the way llama.cpp expects it.

One layer that reads, at each position, the embedding of a token and a state: of committed text the target's own hidden
states before three of its layers, fused by `fc`; of drafted text the state that the head itself had one level above.
The embedding of tokens is the head's own, the output is the target's. Source: Li et al., "EAGLE-3: Scaling up Inference
Acceleration of Large Language Models via Training-Time Test" (2025); the layout is that of llama.cpp's
src/models/eagle3.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .model import NORM_EPSILON, Llama, rope_angles, rotate


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head.

    width is the target's; own_heads: how many of the attention heads begin by looking at their own place;
    target_layers: the states before these layers are read (exactly 3).
    """

    width: int
    heads: int
    own_heads: int
    head_width: int
    feed_forward: int
    target_layers: tuple[int, ...]
    vocabulary: int

    @property
    def layers(self) -> int:
        """llama.cpp's EAGLE-3 heads have one layer."""
        return 1

    @property
    def kv_heads(self) -> int:
        """As many as query heads."""
        return self.heads

    @property
    def attention_width(self) -> int:
        """Numbers that all attention heads mix together; there are as many key/value heads as query heads."""
        return self.heads * self.head_width


class Norm(nn.RMSNorm):
    """RMSNorm that computes in float32 and gives what the matrices behind it read."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x."""
        x = x.float()
        scaled = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + NORM_EPSILON) * self.weight
        return scaled.to(torch.bfloat16) if torch.is_autocast_enabled("cpu") else scaled


class HeadBlock(nn.Module):
    """The layer: attention over tokens and states side by side, then a SwiGLU feed-forward part."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.attn_norm = Norm(shape.width, eps=NORM_EPSILON)
        self.attn_norm_2 = Norm(shape.width, eps=NORM_EPSILON)
        self.attn_q = nn.Linear(2 * shape.width, shape.attention_width, bias=False)
        self.attn_k = nn.Linear(2 * shape.width, shape.attention_width, bias=False)
        self.attn_v = nn.Linear(2 * shape.width, shape.attention_width, bias=False)
        self.attn_output = nn.Linear(shape.attention_width, shape.width, bias=False)
        self.ffn_norm = Norm(shape.width, eps=NORM_EPSILON)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, tokens: Tensor, states: Tensor, angles: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        """States one level down [batch, time, width] of token embeddings and states of the same shape.

        seen: keys and values of the levels above, to which this level's are added. A row attends to the first level up
        to its own place, which is the committed text, and to its own place in all levels, which is its draft.
        """
        batch, time, _ = states.shape
        heads = (batch, time, self.shape.heads, self.shape.head_width)
        x = torch.cat([self.attn_norm(tokens), self.attn_norm_2(states)], dim=-1)
        q = rotate(self.attn_q(x).view(heads).transpose(1, 2), angles) * self.shape.head_width**-0.5
        k = rotate(self.attn_k(x).view(heads).transpose(1, 2), angles)
        v = self.attn_v(x).view(heads).transpose(1, 2)
        seen.append((k, v))
        (committed, values), drafted = seen[0], seen[1:]
        # Not torch's own attention, which took half of the time of a training step on the CPU.
        later = torch.full((time, time), -torch.inf, dtype=q.dtype).triu(1)
        scores = [(q @ committed.transpose(2, 3)).add_(later)]
        scores += [(q * keys).sum(dim=-1, keepdim=True) for keys, _ in drafted]
        weights = torch.cat(scores, dim=-1).softmax(dim=-1)
        mixed = weights[..., :time] @ values
        for index, (_, own) in enumerate(drafted):
            mixed = mixed + weights[..., time + index, None] * own
        x = states.float() + self.attn_output(mixed.transpose(1, 2).reshape(batch, time, -1))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


class Head(nn.Module):
    """An EAGLE-3 head. Its parameters have the names of llama.cpp's tensors; the output matrix is the target's."""

    angles: Tensor
    output: Tensor

    def __init__(self, shape: HeadShape, target: Llama) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.fc = nn.Linear(len(shape.target_layers) * shape.width, shape.width, bias=False)
        self.blk = nn.ModuleList([HeadBlock(shape)])
        self.output_norm = Norm(shape.width, eps=NORM_EPSILON)
        self.register_buffer("angles", rope_angles(shape.head_width), persistent=False)
        self.register_buffer("output", target.token_embd.weight.detach().clone(), persistent=False)

    def forward(self, ids: Tensor, states: Tensor, levels: int) -> list[Tensor]:
        """Normed states of each level [batch, time - levels, width] for ids [batch, time]; `output` makes them logits.

        states [batch, time, 3 * width]: the target's, see `Llama.read`. Row r of level l (from 0) knows the states up
        to r and the true tokens up to r + 1 + l, and drafts what the target says at r + 1 + l.
        """
        rows = ids.shape[1] - levels
        hidden = self.fc(states[:, :rows])
        seen: list[tuple[Tensor, Tensor]] = []
        normed = []
        for level in range(levels):
            tokens = self.token_embd(ids[:, 1 + level : 1 + level + rows])
            hidden = self.blk[0](tokens, hidden, self.angles[level : level + rows], seen)
            normed.append(self.output_norm(hidden))
        return normed

    def parameter_count(self) -> int:
        """Number of trained weights."""
        return sum(parameter.numel() for parameter in self.parameters())
