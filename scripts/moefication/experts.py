"""How a feed-forward layer becomes experts and a router (MoEfication, arXiv 2110.01786), by least squares alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
ROUNDS = 8  # of k-means; further ones move hardly any neuron
RIDGE = 0.01  # of the mean of the diagonal; a tenth or ten times as much fits about as well


def split(strengths: Floats, n_experts: int, seed: int = 0) -> NDArray[np.int64]:
    """The neurons of each expert, int64[n_experts, n_ff / n_experts]: balanced k-means of those that fire together.

    strengths: float32[n_tokens, n_ff], by how much each neuron contributes to the layer's output.
    """
    shares = strengths / np.linalg.norm(strengths, axis=1, keepdims=True)
    directions = (shares / (np.linalg.norm(shares, axis=0) + 1e-9)).T
    n_neurons = len(directions)
    centres = directions[np.random.default_rng(seed).choice(n_neurons, n_experts, replace=False)]
    for _ in range(ROUNDS):
        likeness = directions @ centres.T
        expert_of = _balanced(likeness)
        centres = np.stack([directions[expert_of == expert].mean(axis=0) for expert in range(n_experts)])
        centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    return np.argsort(expert_of, kind="stable").reshape(n_experts, -1)


def _balanced(likeness: Floats) -> NDArray[np.int64]:
    """The best expert with room for each neuron; those that would lose most by their second choice come first."""
    n_neurons, n_experts = likeness.shape
    best = np.argsort(-likeness, axis=1)
    two = np.take_along_axis(likeness, best[:, :2], axis=1)
    room = np.full(n_experts, n_neurons // n_experts)
    expert_of = np.empty(n_neurons, np.int64)
    for neuron in np.argsort(two[:, -1] - two[:, 0]):
        expert_of[neuron] = expert = next(expert for expert in best[neuron] if room[expert])
        room[expert] -= 1
    return expert_of


def output_norms(neurons: Floats, down: Floats, experts: NDArray[np.int64]) -> Floats:
    """The norm of each expert's output, float32[n_tokens, n_experts]. down: float32[n_embd, n_ff]."""
    return np.stack([np.linalg.norm(neurons[:, own] @ down[:, own].T, axis=1) for own in experts], axis=1)


def fit_router(inputs: Floats, norms: Floats) -> Floats:
    """A router, float32[n_experts, n_embd], that foretells which outputs are large from the layer's inputs."""
    relative = norms / (np.sqrt(np.mean(np.square(norms), axis=1, keepdims=True)) + 1e-9)
    return _least_squares(inputs, relative, np.ones(len(inputs), np.float32)).T


def chosen_neurons(scores: Floats, n_used: int, experts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which neurons are computed, bool[n_tokens, n_ff], where the experts of the highest scores are chosen."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :n_used]
    is_chosen = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(is_chosen, best, True, axis=1)
    expert_of = np.empty(experts.size, np.int64)
    expert_of[experts] = np.arange(len(experts))[:, None]
    return is_chosen[:, expert_of]


def fit_down(down: Floats, neurons: Floats, wanted: Floats, weights: Floats) -> Floats:
    """The matrix near `down` with which the chosen neurons alone come nearest to what is wanted, float32[n_embd, n_ff].

    neurons: float32[n_tokens, n_ff], 0 where not chosen. wanted: float32[n_tokens, n_embd]. weights: of the tokens.
    """
    return down + _least_squares(neurons, wanted - neurons @ down.T, weights).T


def _least_squares(inputs: Floats, outputs: Floats, weights: Floats) -> Floats:
    """Ridge regression, float32[n_in, n_out]; `weights` of the n rows."""
    weighted = inputs * weights[:, None]
    products = (weighted.T @ inputs).astype(np.float64)
    products[np.diag_indices_from(products)] += RIDGE * np.trace(products) / len(products) + 1e-12
    return np.linalg.solve(products, weighted.T @ outputs).astype(np.float32)
