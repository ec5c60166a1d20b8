"""The test for methods that keep only the distribution: how answers begin, over many seeds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TypeAlias

from specrun.engine.generation import Generation
from specrun.engine.model import Model
from specrun.engine.passes import write_alone
from specrun.engine.request import Request
from specrun.engine.statistics import Pass
from specrun.long_run import Run
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.tree import TokenTree
from specrun.verifying.findings import SeedTest

_N_TOKENS = 2  # of a beginning: the second token is drafted behind a drafted token
_N_WRITTEN = _N_TOKENS + 1  # so that the first pass drafts as many levels as a beginning has tokens
_LEAST_EXPECTED = 5  # seeds that must begin with a token for what follows it to be told apart

Beginning: TypeAlias = tuple[int, ...]


def expected_beginnings(
    model: Model, prompt: list[int], sampling: SamplingParameters, n_seeds: int
) -> dict[Beginning, float]:
    """The target's own probability of each way in which an answer can begin: two tokens, or one.

    One token stands for all that follows it if it ends the text, or if few of `n_seeds` texts are expected to begin
    with it. Every probability comes from passes of one token.
    """
    target = model.engine.target
    sampler = Sampler(sampling, target.n_vocab)

    def next_token(text: list[int]) -> dict[int, float]:
        target.set_prompt(text)
        row = target.score(TokenTree.root_only(text[-1]))[0]
        target.drop_tree()
        found = sampler.distribution(row, sampler.recent(text))
        return dict(zip(found.tokens.tolist(), found.probabilities.tolist(), strict=True))

    expected: dict[Beginning, float] = {}
    for first, share in next_token(prompt).items():
        if n_seeds * share < _LEAST_EXPECTED or model.llama_model.is_end_of_generation(first):
            expected[(first,)] = share
        else:
            expected |= {(first, second): share * p for second, p in next_token([*prompt, first]).items()}
    return expected


def seed_test(
    model: Model,
    prompt: list[int],
    sampling: SamplingParameters,
    n_seeds: int,
    plans: PlanChooser,
    name: str,
    run: Run,
) -> tuple[SeedTest, list[Pass]]:
    """Begin an answer with each of `n_seeds` seeds, from the seed of `sampling` on, and count the beginnings.

    name: of the plans. Returns the counts, and the passes that wrote the beginnings.
    """
    expected = expected_beginnings(model, prompt, sampling, n_seeds)
    counts, passes = Counter[Beginning](), list[Pass]()
    for n_done in range(n_seeds):
        run.done(n_done / n_seeds).show(f"{name}, seed {n_done + 1} of {n_seeds}")
        tokens: list[int] = []
        request = Request(prompt, replace(sampling, seed=sampling.seed + n_done), _N_WRITTEN)
        for done in write_alone(Generation(model.engine, request, plans)):
            passes.append(done)
            tokens += done.accepted.tokens
            if len(tokens) >= _N_TOKENS:
                break
        counts[tuple(tokens[:1]) if tuple(tokens[:1]) in expected else tuple(tokens[:_N_TOKENS])] += 1
    observed = [counts[beginning] for beginning in expected]
    shares = (*(n_seeds * share for share in expected.values()), 0.0)
    return SeedTest((*observed, n_seeds - sum(observed)), shares), passes
