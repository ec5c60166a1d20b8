"""How a head begins: as the target's last layer, on the best linear guess of the state which that layer will read.

The head knows the target's states up to a token, and the next token. The state that enters the target's last layer at
the next token is fitted in closed form (ridge regression) as a linear map of those states and one vector for each
token. The map becomes `fc`, the vectors become the head's embedding. Some of the attention heads look at their own
place and bring the strongest components of the token's vector to the state. Where the target's layer is like the
head's, the others are its attention heads, those that add most, and the feed-forward part begins with its own;
elsewhere these add nothing at first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from .lessons import Lessons
from .network import Head, rope_angles, rotate

_RIDGE = 3.0  # tokens' worth of evidence against a vector of a token, and that share of a state's spread against fc
_PEAK = 7.0  # of the query and the key of a head that looks at its own place: e^6 times the weight of the place before
_FITTED = 1000  # texts that the linear guess is fitted on
_SPREAD = 32  # texts that show how large a state and what heads add to it are
_PEAKED_PAIRS = 4  # of rotated components, the fastest, that tell such a head where it is
_BY_CHANCE = 0.1  # size of matrices that begin at random, to those that are usual

Weights = Mapping[str, Tensor]


@torch.no_grad()
def begin(head: Head, last: Weights, lessons: Lessons) -> float:
    """Set the weights of a head on the CPU; returns the share of the states' variance that the linear guess explains.

    last: float32 weights of the target's last layer, and its last norm, as `shape.last_layer` has them.
    """
    shape, block = head.shape, head.blk[0]
    for parameter in head.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 / math.sqrt(3.0))

    def texts() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for tokens, states in lessons.in_order(_FITTED):
            yield tokens[1:], states[:-1], states[1:, -shape.width :]

    matrix, vectors, explained = linear_guess(texts, len(lessons.vocabulary.read))
    head.fc.weight.copy_(matrix)
    width, own = shape.width, shape.own_heads * shape.head_width
    # A vector's weakest component makes room for a constant, which heads need in order to look at their own place.
    turn = torch.linalg.svd(vectors, full_matrices=False).Vh if len(vectors) > width else torch.eye(width)
    turned = vectors @ turn.T
    norm = turned.square().mean().sqrt()
    turned[:, -1] = norm
    head.token_embd.weight.copy_(turned)
    back = turn.T.clone() * norm
    back[:, -1] = 0.0
    if "output_norm" in last:
        head.output_norm.weight.copy_(last["output_norm"])
    for part in (block.attn_q, block.attn_k, block.attn_v):
        part.weight.mul_(_BY_CHANCE)
    block.attn_output.weight.zero_()
    # Heads of their own place. They bring as many of a vector's strongest components as they are wide together.
    for index in range(shape.own_heads):
        first = index * shape.head_width
        for weight in (block.attn_q.weight, block.attn_k.weight):
            weight[first : first + 2 * _PEAKED_PAIRS : 2, width - 1] = _PEAK
    block.attn_v.weight[:own] = 0.0
    block.attn_v.weight[:own, :width] = torch.eye(own, width)
    block.attn_output.weight[:, :own] = back[:, :own]
    if shape.copies_attention:
        _copy_attention(head, last, lessons, back, float(norm))
    block.ffn_down.weight.zero_()
    if shape.copies_feed_forward:
        block.ffn_norm.weight.copy_(last["ffn_norm"])
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            getattr(block, name).weight.copy_(last[name])
    return explained


def _copy_attention(head: Head, last: Weights, lessons: Lessons, back: Tensor, norm: float) -> None:
    """Let the heads that do not look at their own place be those of the target's last layer that add most.

    That layer reads state and vector as one sum, normed; here each is normed apart. back [width, width]: makes a vector
    of the embedding. norm: root mean square of the vectors.
    """
    shape, block = head.shape, head.blk[0]
    own = shape.own_heads * shape.head_width
    states = torch.cat([states for _, states in lessons.in_order(_SPREAD)])
    spread = float(head.fc(states).square().mean().sqrt())
    total = math.hypot(spread, norm)
    scale = torch.cat([back / total, torch.eye(shape.width) * spread / total], dim=1)
    chosen = strongest_heads(head, last, lessons)[: shape.heads - shape.own_heads]
    for name in ("attn_q", "attn_k", "attn_v"):
        theirs = _by_head(last[name], shape.heads, shape.head_width)[chosen].flatten(0, 1)
        getattr(block, name).weight[own:] = (theirs * last["attn_norm"]) @ scale
    output = last["attn_output"].view(shape.width, shape.heads, shape.head_width)
    block.attn_output.weight[:, own:] = output[:, chosen].flatten(1)


def _by_head(weight: Tensor, heads: int, head_width: int) -> Tensor:
    """[heads, head_width, width] of a matrix that may have fewer key/value heads, each for several query heads."""
    found = weight.view(-1, head_width, weight.shape[1])
    return found.repeat_interleave(heads // len(found), dim=0)


def linear_guess(
    texts: Callable[[], Iterator[tuple[Tensor, Tensor, Tensor]]], n_read: int
) -> tuple[Tensor, Tensor, float]:
    """Fit the state before the target's last layer by the states one token before and the token.

    texts: goes through texts, one at a time, as all states need not fit the memory: tokens int64[n] below n_read, the
    states one token before float32[n, state_width], and the states to be fitted float32[n, width].
    Returns the matrix [width, state_width], a vector for each token [n_read, width], and the share of the variance
    explained. The effect of the tokens is taken out of both sides first (Frisch and Waugh), then the rest is fitted.
    """
    _, first_known, first_wanted = next(texts())
    state_width, width = first_known.shape[1], first_wanted.shape[1]
    counts = torch.zeros(n_read, 1)
    known_sums, wanted_sums = torch.zeros(n_read, state_width), torch.zeros(n_read, width)
    for tokens, known, wanted in texts():
        counts.index_add_(0, tokens, torch.ones(len(tokens), 1))
        known_sums.index_add_(0, tokens, known)
        wanted_sums.index_add_(0, tokens, wanted)

    def by_token(sums: Tensor) -> Tensor:
        mean = sums.sum(dim=0) / counts.sum()
        return mean + (sums - counts * mean) / (counts + _RIDGE)

    of_known, of_wanted = by_token(known_sums), by_token(wanted_sums)
    square, mixed = torch.zeros(state_width, state_width), torch.zeros(state_width, width)
    for tokens, known, wanted in texts():
        inputs = known - of_known[tokens]
        square += inputs.T @ inputs
        mixed += inputs.T @ (wanted - of_wanted[tokens])
    square += _RIDGE * square.diagonal().mean() * 1e-4 * torch.eye(len(square))
    matrix = torch.linalg.solve(square, mixed).T
    vectors = of_wanted - of_known @ matrix.T
    mean = wanted_sums.sum(dim=0) / counts.sum()
    rest, spread = 0.0, 0.0
    for tokens, known, wanted in texts():
        rest += float((wanted - known @ matrix.T - vectors[tokens]).square().sum())
        spread += float((wanted - mean).square().sum())
    return matrix, vectors, 1.0 - rest / spread


def strongest_heads(head: Head, last: Weights, lessons: Lessons) -> Tensor:
    """The attention heads of the target's last layer [heads], those first that add most to its state."""
    shape = head.shape
    added = torch.zeros(shape.heads)
    output = last["attn_output"].view(shape.width, shape.heads, shape.head_width)
    for _, states in lessons.in_order(_SPREAD):
        x = functional.rms_norm(states[:, -shape.width :], (shape.width,), last["attn_norm"], shape.epsilon)
        q, k, v = (
            torch.einsum("td,hkd->htk", x, _by_head(last[name], shape.heads, shape.head_width))
            for name in ("attn_q", "attn_k", "attn_v")
        )
        angles = rope_angles(shape, len(x))
        q, k = rotate(q[None], angles)[0], rotate(k[None], angles)[0]
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        added += torch.einsum("htk,dhk->htd", mixed, output).square().mean(dim=(1, 2))
    return added.argsort(descending=True)
