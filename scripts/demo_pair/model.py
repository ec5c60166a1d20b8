"""A small llama-architecture transformer, laid out the way llama.cpp expects it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

NORM_EPSILON = 1e-5
ROPE_BASE = 10_000.0
CONTEXT_LENGTH = 1024


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. Widths are multiples of 32 because a Q8_0 block holds 32 weights."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int = 2048

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads


class Cache:
    """Keys and values of one layer for the tokens seen so far [batch, kv_heads, capacity, head_width]."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.keys = self.values = torch.empty(0)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new tokens' keys and values and return those of all tokens."""
        if self.length == 0:
            batch, kv_heads, _, head_width = keys.shape
            self.keys = keys.new_empty(batch, kv_heads, self.capacity, head_width)
            self.values = torch.empty_like(self.keys)
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Block(nn.Module):
    """One layer: grouped-query attention, then a SwiGLU feed-forward part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_width
        self.attn_norm = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.attn_q = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_v = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor, angles: Tensor, cache: Cache | None = None) -> Tensor:
        """Map x [batch, time, width] to the same shape."""
        x = x + self.attend(self.attn_norm(x), angles, cache)
        normed = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))

    def attend(self, x: Tensor, angles: Tensor, cache: Cache | None) -> Tensor:
        """Causal attention over x [batch, time, width] and, with a filled cache (then time is 1), the tokens in it."""
        batch, time, _ = x.shape
        shape = self.shape
        q = rotate(self.attn_q(x).view(batch, time, shape.heads, shape.head_width).transpose(1, 2), angles)
        k = rotate(self.attn_k(x).view(batch, time, shape.kv_heads, shape.head_width).transpose(1, 2), angles)
        v = self.attn_v(x).view(batch, time, shape.kv_heads, shape.head_width).transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v.to(k.dtype))
        repeats = shape.heads // shape.kv_heads
        # Query head h reads kv head h // repeats, as in llama.cpp.
        if time == 1:
            mixed = functional.scaled_dot_product_attention(
                q.view(batch, shape.kv_heads, repeats, shape.head_width), k, v
            )
            return self.attn_output(mixed.reshape(batch, 1, shape.width))
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn_output(mixed.transpose(1, 2).reshape(batch, time, shape.width))


class Llama(nn.Module):
    """Token ids in, next-token logits out. The output matrix is the embedding matrix."""

    angles: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=NORM_EPSILON)
        self.register_buffer("angles", rope_angles(shape.head_width), persistent=False)
        self.initialise()

    def initialise(self) -> None:
        """Draw small random weights; branches that add to the residual stream start smaller."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            deviation = 0.02 if name.startswith("token_embd") else parameter.shape[1] ** -0.5 / math.sqrt(3.0)
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                deviation /= math.sqrt(2.0 * self.shape.layers)
            nn.init.normal_(parameter, std=deviation)

    def forward(self, ids: Tensor, caches: list[Cache] | None = None) -> Tensor:
        """Return logits [batch, time, vocabulary] for ids [batch, time] that follow the cached tokens."""
        start = 0 if caches is None else caches[0].length
        angles = self.angles[start : start + ids.shape[1]]
        x = self.token_embd(ids)
        for index, block in enumerate(self.blk):
            x = block(x, angles, None if caches is None else caches[index])
        return functional.linear(self.output_norm(x), self.token_embd.weight)

    def read(self, ids: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """What a head learns from: the states before these layers side by side, and the normed states after the last.

        Returns [batch, time, len(layers) * width] and [batch, time, width] for ids [batch, time].
        """
        angles, x, states = self.angles[: ids.shape[1]], self.token_embd(ids), {}
        for index, block in enumerate(self.blk):
            states[index] = x
            x = block(x, angles)
        return torch.cat([states[layer] for layer in layers], dim=-1), self.output_norm(x)

    def parameter_count(self) -> int:
        """Number of trained weights."""
        return sum(parameter.numel() for parameter in self.parameters())


def layers_of(model: Llama, layers: tuple[int, ...]) -> Llama:
    """Return a copy of the model that keeps only these of its layers, in this order, and everything else."""
    shorter = Llama(replace(model.shape, layers=len(layers)))
    state = model.state_dict()
    for name in shorter.state_dict():
        source = name
        if name.startswith("blk."):
            _, index, rest = name.split(".", 2)
            source = f"blk.{layers[int(index)]}.{rest}"
        shorter.get_parameter(name).data.copy_(state[source])
    return shorter


def rope_angles(head_width: int) -> Tensor:
    """Rotation angle in radians for each position and each pair of components [context, head_width / 2]."""
    rates = ROPE_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    return torch.outer(torch.arange(CONTEXT_LENGTH, dtype=torch.float32), rates)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate neighbouring pairs of x [batch, heads, time, head_width]: llama.cpp's order for this architecture."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)


@torch.no_grad()
def generate(model: Llama, prompts: Tensor, new_tokens: int, temperature: float, seed: int) -> Tensor:
    """Continue prompts [batch, time] by new_tokens each; temperature 0 is greedy. Returns ids [batch, time + new]."""
    random = torch.Generator().manual_seed(seed)
    caches = [Cache(prompts.shape[1] + new_tokens) for _ in model.blk]
    ids = fresh = prompts
    for _ in range(new_tokens):
        last = model(fresh, caches)[:, -1].float()
        if temperature > 0.0:
            fresh = torch.multinomial((last / temperature).softmax(dim=-1), 1, generator=random)
        else:
            fresh = last.argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, fresh], dim=1)
    return ids
