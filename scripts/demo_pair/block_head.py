"""A DSpark head for a model of `model.py`, laid out the way llama.cpp expects it.

One pass drafts a whole block. Its rows are the last token of the text, the root, and masks for the tokens after it.
Each layer attends from them to the committed text, whose keys and values are made of the target's own hidden states,
and to the rows before, so that fewer rows are a block as well. Row i gives the token i + 1 places after the root; its
logits are those of the last layer plus what the token before suggests, by two thin matrices (the Markov part). The
output matrix is the target's, copied because a head with an embedding of its own needs one too. Source: "DFlash: Block
Diffusion for Flash Speculative Decoding" (arXiv 2602.06036); the layout is that of llama.cpp's src/models/dflash.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from make_head.network import Norm
from torch import Tensor, nn
from torch.nn import functional

from .model import NORM_EPSILON, rope_angles

MASK = 0  # the token <|endoftext|>, which is nowhere else inside a block


@dataclass(frozen=True)
class BlockShape:
    """Sizes of a head. width is the target's; target_layers: the states before these layers are read.

    block: rows of a pass, each a drafted token. rank: numbers by which the Markov part knows a token.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    target_layers: tuple[int, ...]
    vocabulary: int
    block: int
    rank: int


class BlockLayer(nn.Module):
    """Attention from the rows of blocks to the text before them and to each other, then a SwiGLU feed-forward part."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        inner, kv_width = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        self.attn_norm = Norm(shape.width, eps=NORM_EPSILON)
        self.attn_q = nn.Linear(shape.width, inner, bias=False)
        self.attn_k = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_v = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_q_norm = Norm(shape.head_width, eps=NORM_EPSILON)
        self.attn_k_norm = Norm(shape.head_width, eps=NORM_EPSILON)
        self.attn_output = nn.Linear(inner, shape.width, bias=False)
        self.ffn_norm = Norm(shape.width, eps=NORM_EPSILON)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor, text: Tensor, roots: Tensor, angles: Tensor) -> Tensor:
        """Map x [batch, blocks, block, width] to the same shape.

        text [batch, time, width]: fused states of the target. roots [batch, blocks]: positions; a block sees the text
        before its root. angles [context, head_width / 2].
        """
        shape = self.shape
        batch, blocks, block, _ = x.shape
        time = text.shape[1]
        places = roots[:, :, None] + torch.arange(block)
        normed = self.attn_norm(x)
        own = angles[places][:, :, :, None]
        q = turn(self.attn_q_norm(self.heads(self.attn_q(normed))), own) * shape.head_width**-0.5
        k = turn(self.attn_k_norm(self.heads(self.attn_k(normed))), own)
        v = self.heads(self.attn_v(normed))
        before = turn(self.attn_k_norm(self.heads(self.attn_k(text))), angles[:time, None])
        values = self.heads(self.attn_v(text))
        groups = shape.heads // shape.kv_heads
        # [batch, kv_heads, blocks * groups * block, head_width]: query head h reads kv head h // groups.
        grouped = q.view(batch, blocks, block, shape.kv_heads, groups, -1).permute(0, 3, 1, 4, 2, 5)
        rows = grouped.reshape(batch, shape.kv_heads, -1, shape.head_width)
        hidden = torch.zeros(batch, blocks, time, dtype=q.dtype)
        hidden.masked_fill_(torch.arange(time) >= roots[:, :, None], -torch.inf)
        far = (rows @ before.permute(0, 2, 3, 1)).view(batch, shape.kv_heads, blocks, groups * block, time)
        far = far + hidden[:, None, :, None]
        near = grouped.reshape(batch, shape.kv_heads, blocks, -1, shape.head_width) @ k.permute(0, 3, 1, 4, 2)
        near = near + torch.full((block, block), -torch.inf, dtype=q.dtype).triu(1).repeat(groups, 1)
        weights = torch.cat([far, near], dim=-1).softmax(dim=-1)
        mixed = (weights[..., :time].reshape(batch, shape.kv_heads, -1, time) @ values.transpose(1, 2)).view(
            batch, shape.kv_heads, blocks, groups * block, -1
        )
        mixed = mixed + weights[..., time:] @ v.permute(0, 3, 1, 2, 4)
        mixed = mixed.view(batch, shape.kv_heads, blocks, groups, block, -1).permute(0, 2, 4, 1, 3, 5)
        x = x.float() + self.attn_output(mixed.reshape(batch, blocks, block, -1))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))

    def heads(self, x: Tensor) -> Tensor:
        """x [..., heads * head_width] as [..., heads, head_width]."""
        return x.view(*x.shape[:-1], -1, self.shape.head_width)


class Encoder(nn.Module):
    """The norm after `fc`, under the name of llama.cpp's tensor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output_norm = Norm(width, eps=NORM_EPSILON)


class BlockHead(nn.Module):
    """A DSpark head. Its parameters have the names of llama.cpp's tensors."""

    angles: Tensor

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False).requires_grad_(False)
        self.fc = nn.Linear(len(shape.target_layers) * shape.width, shape.width, bias=False)
        self.enc = Encoder(shape.width)
        self.blk = nn.ModuleList(BlockLayer(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, eps=NORM_EPSILON)
        self.markov_w1 = nn.Embedding(shape.vocabulary, shape.rank)
        self.markov_w2 = nn.Linear(shape.rank, shape.vocabulary, bias=False)
        self.register_buffer("angles", rope_angles(shape.head_width), persistent=False)

    def forward(self, ids: Tensor, states: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
        """What gives the logits of each row: [batch, blocks, block, width] and [batch, blocks, block, rank].

        ids [batch, time]; states [batch, time, layers * width], see `Llama.read`; roots [batch, blocks]: positions of
        the roots, at least `block` before the end. The logits are the first @ output.T plus the second @ markov_w2.T,
        for which each row is told the true token before.
        """
        text = self.enc.output_norm(self.fc(states))
        places = roots[:, :, None] + torch.arange(self.shape.block)
        true = ids.gather(1, places.flatten(1)).view(places.shape)
        rows = torch.full_like(true, MASK)
        rows[:, :, 0] = true[:, :, 0]
        x = self.token_embd(rows)
        for layer in self.blk:
            x = layer(x, text, roots, self.angles)
        return self.output_norm(x), self.markov_w1(true)

    def parameter_count(self) -> int:
        """Number of trained weights."""
        return sum(parameter.numel() for parameter in self.parameters())


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the halves of x [..., head_width] against each other: llama.cpp's order for this architecture."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
