"""How a DSpark head begins: every row starts from the best linear guess of the state before the target's last layer.

The guess is that of `make_head.start.linear_guess`: a linear map of the target's states one token before the
root, which becomes `fc`, and a vector for the root's token, which becomes the embedding. The heads of the first layer
look at the last places of the text and bring the guess to the row; the second layer has the feed-forward part of the
target's last layer. Everything else begins small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from make_head.start import linear_guess
from torch import Tensor

from .block_head import MASK, BlockHead, BlockLayer
from .head_teaching import Lessons
from .model import Llama

# Rotated components by which a head prefers the latest places, slow ones, so that no place far away comes round again.
SLOW_PAIRS = (5, 7, 9)
SLOPE = 12.0  # of the preference: about 0.7 nats for each place near the root
SMALL = 0.1


@torch.no_grad()
def begin(head: BlockHead, target: Llama, lessons: Lessons) -> float:
    """Set the head's weights; returns the share of the states' variance that the linear guess explains."""
    shape, last = head.shape, target.blk[-1]
    assert shape.heads * shape.head_width == shape.kv_heads * shape.head_width == shape.width
    for parameter in head.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 / math.sqrt(3.0))
    for layer in head.blk:
        layer.attn_output.weight.mul_(SMALL)
        layer.ffn_down.weight.mul_(SMALL)

    def texts() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for ids, states in zip(lessons.ids, lessons.states.float(), strict=True):
            yield ids[1:], states[:-1], states[1:, -shape.width :]

    matrix, vectors, explained = linear_guess(texts, shape.vocabulary)
    # The guess leaves one direction free: there the root and the masks have one sign, and the text has the other.
    free = torch.linalg.svd(vectors, full_matrices=False).Vh[-1]
    rest = torch.eye(shape.width) - torch.outer(free, free)
    known = lessons.states[:, :-1].reshape(-1, matrix.shape[1]).float()
    guess = known @ (rest @ matrix).T
    spread = float(guess.square().mean().sqrt())
    head.fc.weight.copy_(rest @ matrix - torch.outer(free, constant(known)) * spread * math.sqrt(shape.width) / 4)
    size = float(vectors.square().mean().sqrt()) * math.sqrt(shape.width) / 4
    head.token_embd.weight.copy_(vectors @ rest + free * size)
    head.token_embd.weight[MASK] = vectors.mean(dim=0) @ rest + free * size
    text = head.fc(known[:2048])
    gather(head.blk[0], free, rest * float(text.square().mean().sqrt()))
    transplant(head.blk[1], last)
    head.output_norm.weight.copy_(target.output_norm.weight)
    head.output.weight.copy_(target.token_embd.weight)
    head.markov_w2.weight.mul_(SMALL)
    return explained


def constant(states: Tensor) -> Tensor:
    """The linear function of states [count, width] that comes closest to one everywhere."""
    square = states.T @ states
    square += square.diagonal().mean() * 1e-4 * torch.eye(len(square))
    return torch.linalg.solve(square, states.sum(dim=0))


def gather(layer: BlockLayer, free: Tensor, back: Tensor) -> None:
    """Let all heads of a layer look at the latest places of the text, and add what they find there, times `back`."""
    shape = layer.shape
    half = shape.head_width // 2
    for part in (layer.attn_q, layer.attn_k):
        part.weight.mul_(SMALL)
    queries, keys = layer.attn_q.weight.view(-1, shape.head_width, shape.width), layer.attn_k.weight
    for pair in SLOW_PAIRS:
        queries[:, pair + half] += 4.0 * free  # a quarter turn ahead of the key: minus the sine of the distance
        keys.view(-1, shape.head_width, shape.width)[:, pair] -= 4.0 * free
    # A head's numbers are normed: with three of 32 in use, each is about 3.3.
    strength = math.sqrt(SLOPE * shape.head_width**0.5) / math.sqrt(shape.head_width / len(SLOW_PAIRS))
    layer.attn_q_norm.weight.fill_(strength)
    layer.attn_k_norm.weight.fill_(strength)
    layer.attn_v.weight.copy_(torch.eye(shape.width))
    layer.attn_output.weight.copy_(back)


def transplant(layer: BlockLayer, theirs: torch.nn.Module) -> None:
    """Begin with the feed-forward part of a layer of the target."""
    n = min(layer.shape.feed_forward, theirs.shape.feed_forward)
    layer.ffn_norm.weight.copy_(theirs.ffn_norm.weight)
    layer.ffn_gate.weight[:n] = theirs.ffn_gate.weight[:n]
    layer.ffn_up.weight[:n] = theirs.ffn_up.weight[:n]
    layer.ffn_down.weight.zero_()
    layer.ffn_down.weight[:, :n] = theirs.ffn_down.weight[:, :n]
