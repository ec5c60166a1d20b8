"""Writes many texts at once: every pass of the target adds a token to each of them.

Where weights are streamed, a pass over sixteen tokens takes as long as a pass over a single token, and elsewhere it
takes less time than sixteen passes. So texts to calibrate on are written together, with plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specrun import clock
from specrun.llama import TargetContext
from specrun.llama.batch import Batch
from specrun.llama.context import Logits
from specrun.long_run import Run
from specrun.sampling import Sampler, SamplingParameters
from specrun.sampling.sampler import Distribution


@dataclass
class Text:
    """A text that the target wrote."""

    prompt: list[int]  # token ids
    sampling: SamplingParameters
    written: list[int] = field(default_factory=list)  # token ids of what follows the prompt
    distributions: list[Distribution] = field(default_factory=list)  # the target's, for each written token


def write_together(
    target: TargetContext,
    prompts: Sequence[list[int]],
    temperatures: Sequence[float],
    least: int,
    most: int,
    run: Run,
    most_groups: int = 1,
    first_seed: int = 0,
) -> dict[float, list[Text]]:
    """For each temperature, a text after each of `prompts`.

    All are written at once if the context has room for `most` tokens of each; else in as many groups as that takes, up
    to `most_groups`. Where a group has no room for `least` tokens of each text, only its first prompts are taken.

    All texts get equally many tokens: `most`, or fewer if the run's deadline passes, but at least `least` if these fit
    the context. Text goes on past its end. Each prompt has a seed of its own, from `first_seed` on, or all texts would
    share their luck. The target's cache is empty afterwards.
    """
    n_each = len(temperatures)
    if target.max_leaves == 1 and n_each > 1:
        # A recurrent state belongs to one sequence, so texts at several temperatures do not share their prompt.
        written_at: dict[float, list[Text]] = {}
        for i, temperature in enumerate(temperatures):
            stage = run.stage((run.deadline - clock.now()) / (n_each - i))
            groups = max(most_groups // n_each, 1)
            written_at |= write_together(target, prompts, [temperature], least, most, stage, groups, first_seed)
        return written_at
    by_prompt = [
        [Text(prompt, SamplingParameters(temperature=temperature, seed=seed)) for temperature in temperatures]
        for seed, prompt in enumerate(prompts, first_seed)
    ]
    n_groups = _n_groups(target, prompts, n_each, most, most_groups)
    for i in range(n_groups):
        group = by_prompt[i::n_groups]
        stage = run.stage((run.deadline - clock.now()) / (n_groups - i))
        n_fitting, length = _fitting(target, prompts[i::n_groups], n_each, least, most)
        _write([text for texts in group[:n_fitting] for text in texts], target, n_each, least, length, stage)
    written = [texts for texts in by_prompt if texts[0].written]
    n_common = min(len(texts[0].written) for texts in written)
    for text in (text for texts in written for text in texts):
        del text.written[n_common:], text.distributions[n_common:]
    return {temperature: [texts[i] for texts in written] for i, temperature in enumerate(temperatures)}


def _n_groups(target: TargetContext, prompts: Sequence[list[int]], n_each: int, most: int, most_groups: int) -> int:
    """The fewest groups in which all texts can have `most` tokens, up to `most_groups`."""
    bound = max(min(most_groups, len(prompts)), 1)
    for n_groups in range(1, bound):
        groups = [prompts[i::n_groups] for i in range(n_groups)]
        if all(_fitting(target, group, n_each, most, most)[0] == len(group) for group in groups):
            return n_groups
    return bound


def _write(texts: Sequence[Text], target: TargetContext, n_each: int, least: int, most: int, run: Run) -> None:
    """Write texts at once, `n_each` after each prompt in turn."""
    samplers = [Sampler(text.sampling, target.n_vocab) for text in texts]
    target.reset()
    try:
        rows = np.repeat(_read_prompts(target, [text.prompt for text in texts[::n_each]], n_each), n_each, axis=0)
        for n_written in range(most):
            if n_written >= least and run.is_over():
                break
            run.show(f"writing {len(texts)} texts, token {n_written + 1} of at most {most}")
            for text, sampler, row in zip(texts, samplers, rows, strict=True):
                text.written.append(sampler.sample(row, len(text.prompt) + n_written, ()))
                text.distributions.append(sampler.distribution(row, ()))
            if n_written + 1 < most:
                rows = target.context.decode(_next_tokens(texts))
    finally:
        target.reset()


def _fitting(
    target: TargetContext, prompts: Sequence[list[int]], n_each: int, least: int, most: int
) -> tuple[int, int]:
    """How many of the prompts fit the context with `n_each` texts of at least `least` tokens after each of them, and
    the length, up to `most`, that these can have. The first prompt is always taken.
    """
    config = target.context.config
    for n in range(max(min(len(prompts), config.n_seq_max // n_each, config.n_outputs // n_each), 1), 0, -1):
        free = config.n_ctx - sum(len(prompt) for prompt in prompts[:n])
        length = min(most, free // (n * n_each))
        if length >= min(least, most):
            break
    return n, max(length, 1)


def _read_prompts(target: TargetContext, prompts: Sequence[list[int]], n_each: int) -> Logits:
    """float32[len(prompts), n_vocab]: the logits after each prompt, which is on `n_each` sequences of its own."""
    tokens = np.concatenate([np.asarray(prompt, np.int32) for prompt in prompts])
    lengths = np.array([len(prompt) for prompt in prompts])
    ends = lengths.cumsum()
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    first_seq = np.repeat(n_each * np.arange(len(prompts), dtype=np.int32), lengths)
    outputs = np.isin(np.arange(len(tokens)), ends - 1)
    rows = []
    for start in range(0, len(tokens), target.context.config.n_batch):
        part = slice(start, start + target.context.config.n_batch)
        n = len(tokens[part])
        batch = Batch(tokens[part], positions[part], first_seq[part], np.full(n, n_each, np.int32), outputs[part])
        rows.append(target.context.decode(batch).copy())
    return np.concatenate(rows)


def _next_tokens(texts: Sequence[Text]) -> Batch:
    """The batch of the last token of every text, each on a sequence of its own."""
    n = len(texts)
    tokens = np.array([text.written[-1] for text in texts], np.int32)
    positions = np.array([len(text.prompt) + len(text.written) - 1 for text in texts], np.int32)
    return Batch(tokens, positions, np.arange(n, dtype=np.int32), np.ones(n, np.int32), np.ones(n, np.bool_))
