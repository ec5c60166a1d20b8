"""An EAGLE-3 head in PyTorch, laid out the way llama.cpp expects it.

One layer that reads, at each position, the embedding of a token and a state: of committed text the target's own hidden
states before three of its layers, fused by `fc`; of drafted text the state that the head itself had one level above.
The output is the target's. Source: Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test" (arXiv 2503.01840); the layout is that of llama.cpp's src/models/eagle3.cpp.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .shape import HeadShape


class Norm(nn.RMSNorm):
    """RMSNorm that computes in float32 and gives what the matrices after it read."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x."""
        x = x.float()
        epsilon = 1e-5 if self.eps is None else self.eps
        scaled = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon) * self.weight
        return scaled.to(torch.bfloat16) if torch.is_autocast_enabled(x.device.type) else scaled


class HeadBlock(nn.Module):
    """The layer: attention over tokens and states side by side, then a SwiGLU feed-forward part."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        width, attention = shape.width, shape.attention_width
        self.attn_norm = Norm(width, eps=shape.epsilon)
        self.attn_norm_2 = Norm(width, eps=shape.epsilon)
        self.attn_q = nn.Linear(2 * width, attention, bias=False)
        self.attn_k = nn.Linear(2 * width, attention, bias=False)
        self.attn_v = nn.Linear(2 * width, attention, bias=False)
        self.attn_output = nn.Linear(attention, width, bias=False)
        self.ffn_norm = Norm(width, eps=shape.epsilon)
        self.ffn_gate = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, width, bias=False)

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
        later = torch.full((time, time), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
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
    """A head. Its parameters have the names of llama.cpp's tensors.

    output: float32[kept, width], the rows of the target's output for the tokens that the head can draft; not trained.
    n_read: tokens that it is shown, and rows of its embedding.
    """

    output: Tensor

    def __init__(self, shape: HeadShape, output: Tensor, n_read: int) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(n_read, shape.width)
        self.fc = nn.Linear(shape.state_width, shape.width, bias=False)
        self.blk = nn.ModuleList([HeadBlock(shape)])
        self.output_norm = Norm(shape.width, eps=shape.epsilon)
        self.register_buffer("output", output, persistent=False)

    @property
    def device(self) -> torch.device:
        return self.output.device

    def forward(self, read: Tensor, states: Tensor, levels: int) -> list[Tensor]:
        """Normed states of each level [batch, time - levels, width]; `output` makes them logits.

        read [batch, time]: rows of the embedding of the tokens. states [batch, time, state_width]: the target's. Row r
        of level l (from 0) knows the states up to r and the true tokens up to r + 1 + l, and drafts what the target
        says at r + 1 + l.
        """
        rows = read.shape[1] - levels
        angles = rope_angles(self.shape, read.shape[1]).to(self.device)
        hidden = self.fc(states[:, :rows])
        seen: list[tuple[Tensor, Tensor]] = []
        normed = []
        for level in range(levels):
            tokens = self.token_embd(read[:, 1 + level : 1 + level + rows])
            hidden = self.blk[0](tokens, hidden, angles[level : level + rows], seen)
            normed.append(self.output_norm(hidden))
        return normed


def rope_angles(shape: HeadShape, n: int) -> Tensor:
    """Rotation angle in radians for each of n positions and each pair of components [n, head_width / 2]."""
    rates = shape.rope_base ** (-torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width)
    return torch.outer(torch.arange(n, dtype=torch.float32), rates)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate neighbouring pairs of x [batch, heads, time, head_width]: llama.cpp's order for this architecture."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)
