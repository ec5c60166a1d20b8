"""How a finished draft or head drafts, measured through specrun and llama.cpp: how often it is right, level by level,
and what a level costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafter import DraftNode
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.tree import ROOT

CONTEXT = 1024
EVERY = 3  # positions of a text that are drafted from; drafts of neighbours are alike
WIDTHS = (1, 2, 4, 8, 16)
REPEATS = 200


@contextmanager
def opened(target: Path, draft: Path, threads: int) -> Iterator[Engine]:
    """The pair, loaded as the commands load it."""
    settings = LlamaSettings(threads=threads)
    plans = (SPECEXEC.plan(budget=64, depth=16, width=max(WIDTHS)), OFF.plan())
    options = RunOptions(target, draft, plans, ctx_size=CONTEXT, settings=settings, draft_settings=settings)
    with Model(options) as model:
        yield model.engine


def written(engine: Engine, prompts: Sequence[list[int]], n_tokens: int) -> list[list[int]]:
    """Each prompt with what the target alone writes after it, greedily."""
    texts = []
    for prompt in prompts:
        request = Request(prompt, SamplingParameters(temperature=0.0), n_tokens)
        new = [token for one in write_alone(Generation(engine, request, FixedPlan(OFF.plan()))) for token in one.tokens]
        texts.append([*prompt, *new])
    return texts


def right_by_level(engine: Engine, texts: Sequence[list[int]], first: int, levels: int) -> list[float]:
    """For each level, how often the draft's likeliest token is the text's, given the text above that level.

    first: the first position of a text that is drafted.
    """
    draft = engine.draft
    assert draft is not None
    right, total = np.zeros(levels), 0
    for text in texts:
        engine.read_for_draft(text)
        for root in range(first - 1, len(text) - levels, EVERY):
            row = draft.start(text[: root + 1])
            for level in range(levels):
                token = text[root + 1 + level]
                right[level] += int(row.argmax()) == token
                if level + 1 < levels:
                    row = draft.expand([DraftNode(level + 1, level or ROOT, token)])[0]
            total += 1
    return [float(share) for share in right / total]


def start_ms(engine: Engine, text: list[int], committed: int = 5) -> float:
    """Milliseconds until the logits after a text are there, so many tokens of it being new: the median.

    Of a block head this is all that its passes take for a tree.
    """
    draft = engine.draft
    assert draft is not None
    engine.read_for_draft(text)
    times = []
    for repeat in range(REPEATS):
        end = len(text) - committed - repeat % EVERY
        draft.start(text[:end])
        started = time.perf_counter()
        draft.start(text[: end + committed])
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def level_ms(engine: Engine, text: list[int]) -> dict[int, float]:
    """Milliseconds of one draft pass over so many nodes after the root, at the end of `text`: the median."""
    draft = engine.draft
    assert draft is not None
    engine.read_for_draft(text)
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for repeat in range(REPEATS):
        for width in WIDTHS:
            draft.start(text)
            nodes = [DraftNode(i + 1, ROOT, (repeat + 7 * i) % draft.n_vocab) for i in range(width)]
            started = time.perf_counter()
            draft.expand(nodes)
            times[width].append(1e3 * (time.perf_counter() - started))
    return {width: statistics.median(of_width) for width, of_width in times.items()}
