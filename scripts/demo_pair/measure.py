"""Measure the shipped weights: loss, agreement, and the same numbers through llama.cpp."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from .model import CONTEXT_LENGTH, Llama, generate

PROMPT_TOKENS = 64
CONTINUATION_TOKENS = 192
SAMPLING_TEMPERATURE = 0.8
# Letters, digits, marks and spaces of several scripts, next to indentation: where two tokenizers could differ.
TRICKY_TEXT = (
    "def na\u00efve(x):\n\tif x:\n\t    return '\u65e5\u672c\u8a9e \u00bd \U0001d6fc \U0001f642'\n\n\n\n"
    "        # it's  we'll 12345   \n    caf\u00e9 = '\u03b1\u03b2\u03b3'  # \u00a0\u2028\u3000 end\r\n\n   \t x\n"
)


@dataclass(frozen=True)
class Fit:
    """How well a model predicts a text."""

    nats_per_token: float
    bits_per_byte: float
    top_1: float


def rows_of(stream: np.ndarray, length: int = CONTEXT_LENGTH) -> Tensor:
    """Cut a stream [tokens] into rows [count, length], dropping the rest."""
    count = len(stream) // length
    return torch.from_numpy(stream[: count * length].reshape(count, length))


@torch.no_grad()
def fit(model: Llama, rows: Tensor, bytes_per_token: float) -> Fit:
    """Predict each token of rows [count, time] from the ones before it in its row."""
    loss, hits, total = 0.0, 0, 0
    for batch in rows.split(8):
        logits, goal = model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
        loss += functional.cross_entropy(logits, goal, reduction="sum").item()
        hits += int((logits.argmax(dim=-1) == goal).sum())
        total += goal.numel()
    nats = loss / total
    return Fit(nats, nats / math.log(2.0) / bytes_per_token, hits / total)


@torch.no_grad()
def agreement(target: Llama, draft: Llama, rows: Tensor, first: int = 0) -> tuple[float, float]:
    """Compare both models at positions first, first + 1, ... of rows [count, time].

    Returns the share of positions with the same most likely token, and the mean overlap of the two distributions
    (sum of the smaller probability), which is the chance that sampled speculation accepts one drafted token.
    """
    same, overlap, total = 0, 0.0, 0
    for batch in rows.split(8):
        ours, theirs = target(batch)[:, first:], draft(batch)[:, first:]
        same += int((ours.argmax(dim=-1) == theirs.argmax(dim=-1)).sum())
        overlap += float(torch.minimum(ours.softmax(dim=-1), theirs.softmax(dim=-1)).sum())
        total += ours.shape[0] * ours.shape[1]
    return same / total, overlap / total


def generated_agreement(target: Llama, draft: Llama, rows: Tensor, temperature: float) -> tuple[float, float]:
    """The same on the target's own continuation of the start of each row."""
    texts = generate(target, rows[:, :PROMPT_TOKENS], CONTINUATION_TOKENS, temperature, seed=0)
    return agreement(target, draft, texts[:, :-1], first=PROMPT_TOKENS - 1)


def check_with_llama_cpp(path: Path, model: Llama, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """Compare a file, as llama.cpp reads it, with the model in memory. Returns lines for the report.

    Raises ValueError if the two tokenize a text differently or disagree on more than one most likely token in 50.
    """
    try:
        import llama_cpp
    except ImportError:
        return ["llama-cpp-python is not installed: not compared with llama.cpp"]
    reader = llama_cpp.Llama(str(path), n_ctx=CONTEXT_LENGTH, n_threads=2, logits_all=True, verbose=False)
    for text in [*texts, TRICKY_TEXT]:
        ids = reader.tokenize(text.encode(), add_bos=True, special=False)
        if ids != tokenizer.encode(text, add_special_tokens=False).ids:
            raise ValueError(f"llama.cpp tokenizes differently: {text[:80]!r}")
        if reader.detokenize(ids) != text.encode():
            raise ValueError(f"tokens do not give back the text: {text[:80]!r}")
    lines = [f"tokens equal on {len(texts) + 1} texts"]
    ids = tokenizer.encode(texts[0], add_special_tokens=False).ids[:512]
    reader.reset()
    reader.eval(ids)
    theirs = np.array(reader.scores[: len(ids)], dtype=np.float32)
    with torch.no_grad():
        ours = model(torch.tensor([ids]))[0].numpy()
    same = float((theirs.argmax(axis=1) == ours.argmax(axis=1)).mean())
    correlation = float(np.corrcoef(theirs.ravel(), ours.ravel())[0, 1])
    lines.append(
        f"logits over {len(ids)} tokens: correlation {correlation:.6f}, "
        f"largest difference {np.abs(theirs - ours).max():.3f}, same most likely token {same:.1%}"
    )
    if same < 0.98:
        raise ValueError(lines[-1])
    prompt = "def read_config(path):"
    answer = reader(prompt, max_tokens=96, temperature=0.0)["choices"][0]["text"]
    lines.append(f"greedy continuation:\n{prompt}{answer}")
    return lines
