"""Engines on real models, and what one generation committed, to the last bit."""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding import passes
from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request, StepOfText
from specrun.decoding.passes import write_alone
from specrun.decoding.prompt_states import PromptStates
from specrun.decoding.statistics import Statistics
from specrun.llama import TargetContext, target
from specrun.llama.context import Logits
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.method import Plan
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import Guide, RunCosts
from specrun.speculation.tree import TokenTree


@contextmanager
def engine(
    target: Path,
    draft: Path | None,
    plan: Plan,
    ctx_size: int = 1024,
    repack: bool | None = None,
    gpu_layers: int = 0,
    exact: bool = False,
) -> Iterator[Engine]:
    """An engine whose contexts are made for `plan`, as the commands make them, on one thread.

    gpu_layers: the target's on a GPU; the draft is there too, or not at all. exact: pads as `--exact` does.
    """
    settings = LlamaSettings(threads=1, repack=repack, gpu_layers=gpu_layers)
    # Whether a draft runs without flash attention is otherwise measured, so that its guesses differ by machine.
    draft_settings = LlamaSettings(threads=1, flash_attn="on", gpu_layers=ALL_LAYERS if gpu_layers else 0)
    options = RunOptions(
        target, draft, (plan,), ctx_size=ctx_size, settings=settings, draft_settings=draft_settings, exact=exact
    )
    with Model(options) as model:
        assert [notice for notice in model.notices if "page cache" in notice] == []
        yield model.engine


Change = Callable[[TargetContext, TokenTree, Logits], Logits]


def change_scores(patch: pytest.MonkeyPatch, change: Change) -> None:
    """Let every pass give the logits that `change` makes of each tree's."""
    score = target.score_together

    def changed(
        texts: Sequence[tuple[TargetContext, TokenTree]], reading: Sequence[TargetContext] = (), least: int = 0
    ) -> list[Logits]:
        scores = score(texts, reading, least)
        return [change(one, tree, rows) for (one, tree), rows in zip(texts, scores, strict=True)]

    for module in (target, passes):
        patch.setattr(module, "score_together", changed)


@dataclass(frozen=True)
class Written:
    """Committed tokens, and a checksum of the logits row that each was sampled from."""

    tokens: list[int]
    rows: list[int]
    finish: str | None
    n_passes: int
    statistics: Statistics = field(compare=False)


def write(
    engine: Engine,
    prompt: list[int],
    sampling: SamplingParameters,
    plan: Plan,
    max_tokens: int,
    states: PromptStates | None = None,
) -> Written:
    """Generate, keeping a checksum of every row that decided a committed token."""
    tokens: list[int] = []
    rows: list[int] = []
    finish = None
    generation = Generation(engine, Request(prompt, sampling, max_tokens), chooser(plan))
    accept = StepOfText.accept

    def recorded(step: StepOfText, scores: Logits) -> None:
        accept(step, scores)
        rows.extend(zlib.crc32(np.ascontiguousarray(scores[node]).tobytes()) for node in step.accepted.path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepOfText, "accept", recorded)
        for one in write_alone(generation, states):
            tokens += one.tokens
            finish = one.finish
    return Written(tokens, rows, finish, generation.statistics.passes, generation.statistics)


def written_by(
    plan: Plan,
    sampling: SamplingParameters,
    n_prompts: int,
    n_prompt_tokens: int = 40,
    max_tokens: int = 128,
    target: Path = embedded.TARGET,
    draft: Path = embedded.DRAFT,
    gpu_layers: int = 0,
    exact: bool = False,
) -> list[Written]:
    """What an engine of its own writes with `plan` after `n_prompts` prompts; the seed is the prompt's index."""
    with engine(target, draft, plan, gpu_layers=gpu_layers, exact=exact) as e:
        prompts = code_prompts(e, n_prompts, n_prompt_tokens)
        return [write(e, prompt, replace(sampling, seed=i), plan, max_tokens) for i, prompt in enumerate(prompts)]


def first_difference(written: Written, reference: Written) -> str | None:
    """Where `written` differs from `reference` in a token, in a bit of the logits, or in how it ends."""
    if written == replace(reference, n_passes=written.n_passes):
        return None
    for i, (token, expected) in enumerate(zip(written.tokens, reference.tokens, strict=False)):
        if token != expected:
            return f"token {i} is {token} instead of {expected}"
        if written.rows[i] != reference.rows[i]:
            return f"token {i} is the same, but was sampled from other logits"
    ends = (f"{len(one.tokens)} tokens ended by {one.finish}" for one in (written, reference))
    return " instead of ".join(ends)


def next_token(target: TargetContext, text: list[int], sampling: SamplingParameters) -> dict[int, float]:
    """The probability of each token that may follow `text`, by temperature and top-k alone."""
    target.set_prompt(text)
    row = target.score(TokenTree.root_only(text[-1]))[0].astype(np.float64)
    top = np.argsort(-row, kind="stable")[: sampling.top_k]
    weights = np.exp((row[top] - row.max()) / sampling.temperature)
    return dict(zip(top.tolist(), (weights / weights.sum()).tolist(), strict=True))


def chooser(plan: Plan) -> FixedPlan:
    """`plan` for every pass, on a machine where passes of 64 tokens take twice as long as those of one."""
    if not plan.method.is_adaptive:
        return FixedPlan(plan)
    costs = CostModel(
        CostTable([PassTime(1, 64, 100.0), PassTime(16, 64, 120.0), PassTime(64, 64, 200.0)]),
        CostTable([PassTime(1, 64, 1.0), PassTime(16, 64, 2.0)]),
    )
    return FixedPlan(plan, Guide(RunCosts.of(costs), rate=0.02))


def code_prompts(engine: Engine, count: int, n_tokens: int, seed: int = 0) -> list[list[int]]:
    """Prompts of `n_tokens` tokens from this Python's standard library, each from another file."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    rng = np.random.default_rng(seed)
    prompts: list[list[int]] = []
    for file in rng.permutation(np.array(files, dtype=object)):
        text = file.read_text(encoding="utf-8")
        tokens = engine.target.context.model.tokenize(text[: 40 * n_tokens], add_special=False)
        if len(tokens) > n_tokens:
            start = int(rng.integers(len(tokens) - n_tokens))
            prompts.append(tokens[start : start + n_tokens])
        if len(prompts) == count:
            return prompts
    raise AssertionError(f"only {len(prompts)} files are long enough")
