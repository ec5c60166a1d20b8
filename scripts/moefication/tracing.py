"""Which experts a mixture's tokens choose along a text, and how likely the text is to the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.gguf_file import GgufFile
from specrun.llama import LlamaModel
from specrun.llama.batch import Batch, committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.streaming.gate import ExpertGate
from specrun.llama_settings import LlamaSettings

Choices = NDArray[np.int32]  # [n_layers, n_tokens, n_used]


class Trace(ExpertGate):
    """Notes what the routers choose. Takes the place of weights that are streamed, and reads nothing."""

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file.n_experts, file.n_experts_used, range(file.n_layers), lambda *_: None)
        self.gate = self
        self.chosen: list[NDArray[np.int32]] = []  # of each layer of the last pass, [n_tokens, n_used]

    def begin_pass(self) -> None:
        super().begin_pass()
        self.chosen = []

    def _choose(self, _layer: int, chosen: NDArray[np.int32]) -> None:
        self.chosen.append(chosen.copy())


def read(path: Path, texts: NDArray[np.int32], n_threads: int) -> tuple[NDArray[np.float64], list[Choices]]:
    """Read texts, int32[n_texts, n], each in a pass of its own.

    Returns the negative log-likelihood of each token but the first, float64[n_texts, n - 1], and for a mixture the
    choices in each text.
    """
    n = texts.shape[1]
    trace = Trace(file) if (file := GgufFile.read(path)).n_experts else None
    config = ContextConfig(n, 1, n, n, LlamaSettings(threads=n_threads))
    losses, choices = [], []
    with LlamaModel(path, config.settings) as model, LlamaContext(model, config, trace) as context:
        for text in texts:
            context.remove(ALL_SEQUENCES, 0)
            batch = committed_tokens(text.tolist(), 0, 1, n_outputs=1)
            every = Batch(batch.tokens, batch.positions, batch.first_seq, batch.n_seq, np.ones(n, np.bool_))
            losses.append(_losses(context.decode(every)[:-1], text[1:]))
            if trace:
                choices.append(np.stack(trace.chosen))
    return np.stack(losses), choices


def _losses(logits: NDArray[np.float32], tokens: NDArray[np.int32]) -> NDArray[np.float64]:
    """-log p of tokens, float64[n], by their rows of logits."""
    largest = logits.max(axis=1)
    sums = np.exp(logits - largest[:, None]).sum(axis=1, dtype=np.float64)
    return np.log(sums) + largest - logits[np.arange(len(tokens)), tokens]


def reused(choices: Choices, n_before: int) -> NDArray[np.float64]:
    """By layer, the share of a token's experts that any of the `n_before` tokens before it used; float64[n_layers]."""
    n_layers, n_tokens, _ = choices.shape
    is_used = np.zeros((n_layers, n_tokens, int(choices.max()) + 1), np.bool_)
    np.put_along_axis(is_used, choices, True, axis=2)
    shares = [
        np.take_along_axis(is_used[:, t - n_before : t].any(axis=1), choices[:, t], axis=1).mean(axis=1)
        for t in range(n_before, n_tokens)
    ]
    return np.asarray(np.mean(shares, axis=0))
