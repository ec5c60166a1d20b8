"""How a head begins: as the target's last layer, on the best linear guess of the state which that layer will read.

The head knows the target's states up to a token, and the next token. The state that enters the target's last layer at
the next token is fitted in closed form (ridge regression) as a linear map of those states and one vector for each
token. The map becomes `fc`, the vectors become the head's embedding. Some of the attention heads look at their own
place and bring the strongest components of the token's vector to the state; the others are the attention of the
target's last layer, those of its heads that add most; the feed-forward part begins with the one of that layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .head import Head
from .head_teaching import Lessons
from .model import Llama

RIDGE = 3.0  # tokens' worth of evidence against a vector of a token, and that share of a state's spread against fc
PEAK = 7.0  # of the query and the key of a head that looks at its own place: e^6 times the weight of the place before
SPREAD_LESSONS = 32  # texts that show how large a state and what heads add to it are
PEAKED_PAIRS = 4  # of rotated components, the fastest, that tell such a head where it is


@torch.no_grad()
def begin(head: Head, target: Llama, lessons: Lessons) -> float:
    """Set the head's weights; returns the share of the states' variance that the linear guess explains."""
    shape, block, last = head.shape, head.blk[0], target.blk[-1]
    for parameter in head.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 / math.sqrt(3.0))
    matrix, vectors, explained = linear_guess(lessons, shape.vocabulary)
    head.fc.weight.copy_(matrix)
    width, own = shape.width, shape.own_heads * shape.head_width
    # A vector's weakest component makes room for a constant, which heads need in order to look at their own place.
    turn = torch.linalg.svd(vectors, full_matrices=False).Vh
    turned = vectors @ turn.T
    norm = turned.square().mean().sqrt()
    turned[:, -1] = norm
    head.token_embd.weight.copy_(turned)
    back = turn.T.clone() * norm
    back[:, -1] = 0.0
    block.attn_norm.weight.fill_(1.0)
    block.attn_norm_2.weight.fill_(1.0)
    block.ffn_norm.weight.copy_(last.ffn_norm.weight)
    head.output_norm.weight.copy_(target.output_norm.weight)
    for part in (block.attn_q, block.attn_k, block.attn_v):
        part.weight.mul_(0.1)
    # Heads of their own place. They bring as many of a vector's strongest components as they are wide together.
    for index in range(shape.own_heads):
        first = index * shape.head_width
        for weight in (block.attn_q.weight, block.attn_k.weight):
            weight[first : first + 2 * PEAKED_PAIRS : 2, width - 1] = PEAK
    block.attn_v.weight[:own] = 0.0
    block.attn_v.weight[:own, :width] = torch.eye(own, width)
    block.attn_output.weight[:, :own] = back[:, :own]
    # Attention of the target's last layer. It reads state and vector as one sum, normed; here each is normed apart.
    chosen = strongest_heads(target, lessons)[: shape.heads - shape.own_heads]
    spread = guessed_spread(head, lessons)
    total = math.hypot(spread, float(norm))
    scale = torch.cat([back / total, torch.eye(width) * spread / total], dim=1)
    repeats = target.shape.heads // target.shape.kv_heads
    for part, theirs, copies in (
        (block.attn_q, last.attn_q, 1),
        (block.attn_k, last.attn_k, repeats),
        (block.attn_v, last.attn_v, repeats),
    ):
        heads = theirs.weight.view(-1, shape.head_width, width).repeat_interleave(copies, dim=0)[chosen].flatten(0, 1)
        part.weight[own:] = (heads * last.attn_norm.weight) @ scale
    block.attn_output.weight[:, own:] = last.attn_output.weight.view(width, -1, shape.head_width)[:, chosen].flatten(1)
    block.ffn_down.weight.zero_()
    copied = target.shape.feed_forward
    block.ffn_gate.weight[:copied] = last.ffn_gate.weight
    block.ffn_up.weight[:copied] = last.ffn_up.weight
    block.ffn_down.weight[:, :copied] = last.ffn_down.weight
    return explained


def linear_guess(lessons: Lessons, vocabulary: int) -> tuple[Tensor, Tensor, float]:
    """Fit the state before the target's last layer by the states one token before and the token.

    Returns the matrix [width, 3 * width], a vector for each token [vocabulary, width], and the share of the variance
    explained. The effect of the tokens is taken out of both sides first (Frisch and Waugh), then the rest is fitted.
    """
    width = lessons.last.shape[-1]
    known = lessons.states[:, :-1].reshape(-1, lessons.states.shape[-1]).float()
    wanted = lessons.states[:, 1:, -width:].reshape(-1, width).float()
    tokens = lessons.ids[:, 1:].reshape(-1)
    counts = torch.bincount(tokens, minlength=vocabulary).float()[:, None]

    def by_token(values: Tensor) -> Tensor:
        sums = torch.zeros(vocabulary, values.shape[1]).index_add_(0, tokens, values)
        mean = values.mean(dim=0)
        return mean + (sums - counts * mean) / (counts + RIDGE)

    inputs, outputs = known - by_token(known)[tokens], wanted - by_token(wanted)[tokens]
    square = inputs.T @ inputs
    square += RIDGE * square.diagonal().mean() * 1e-4 * torch.eye(len(square))
    matrix = torch.linalg.solve(square, inputs.T @ outputs).T
    vectors = by_token(wanted - known @ matrix.T)
    rest = wanted - known @ matrix.T - vectors[tokens]
    return matrix, vectors, 1.0 - float(rest.var(dim=0).sum() / wanted.var(dim=0).sum())


def strongest_heads(target: Llama, lessons: Lessons) -> Tensor:
    """The attention heads of the target's last layer [heads], those first that add most to its state."""
    last, angles = target.blk[-1], target.angles[: lessons.ids.shape[1]]
    x = last.attn_norm(lessons.states[:SPREAD_LESSONS, :, -target.shape.width :].float())
    matrix = last.attn_output.weight.clone()
    added = []
    for head in range(target.shape.heads):
        mine = slice(head * target.shape.head_width, (head + 1) * target.shape.head_width)
        last.attn_output.weight.zero_()[:, mine] = matrix[:, mine]
        added.append(last.attend(x, angles, None).square().mean())
    last.attn_output.weight.copy_(matrix)
    return torch.stack(added).argsort(descending=True)


def guessed_spread(head: Head, lessons: Lessons) -> float:
    """Root mean square of the states that `fc` gives."""
    return float(head.fc(lessons.states[:SPREAD_LESSONS].float()).square().mean().sqrt())
