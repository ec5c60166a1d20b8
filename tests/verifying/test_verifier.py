"""Texts with and without speculation are compared, rounding is told from errors, and errors are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specrun import clock
from specrun.bench import BenchPrompt
from specrun.catalog import embedded
from specrun.decoding import generation
from specrun.errors import PromptError
from specrun.llama import TargetContext
from specrun.llama.context import Logits
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.sampling import SamplingParameters
from specrun.speculation.accept import Accepted
from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import Plan
from specrun.speculation.registry import METHODS
from specrun.speculation.tree import TokenTree
from specrun.verifying.findings import Finding
from specrun.verifying.verifier import Verifier, VerifySettings, _Text
from tests.engines import change_scores
from tests.models import wide_target

PROMPTS = [BenchPrompt("code", "def read(self, name):\n    return"), BenchPrompt("prose", "The function")]
SETTINGS = VerifySettings(SamplingParameters(seed=3), (0.0, 0.8), max_tokens=32, n_seeds=60, raw=True)
TREE = SPECEXEC.plan(16, 8)
ONE_THREAD = LlamaSettings(threads=1)


def model_of(plan: Plan, target: Path = embedded.TARGET, settings: LlamaSettings = ONE_THREAD) -> Model:
    options = RunOptions(target, embedded.DRAFT, (plan,), ctx_size=256, settings=settings, draft_settings=ONE_THREAD)
    return Model(options)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with model_of(TREE) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def k_quant(made: Path) -> Iterator[Model]:
    """A target whose logits depend on the size of the pass."""
    settings = replace(ONE_THREAD, repack=False, type_k="f16", type_v="f16")
    with model_of(TREE, wide_target(made, "q4_k_m"), settings) as loaded:
        yield loaded


def found(model: Model, settings: VerifySettings = SETTINGS, prompts: list[BenchPrompt] = PROMPTS) -> list[Finding]:
    return list(Verifier(model, settings, Run()).findings(prompts))


def wrong_after(n_passes: int, rank: int) -> Any:
    """An acceptance that commits, in one drafted pass, the token of this rank by the target's logits."""
    accept = generation.accept
    passes: list[bool] = []  # whether each drafted

    def sabotaged(rule: Any, draft: Any, rows: Any, sampler: Any, tokens: Any) -> Accepted:
        right = accept(rule, draft, rows, sampler, tokens)
        passes.append(len(draft.tree) > 1)
        if not passes[-1] or sum(passes) != n_passes:
            return right
        wrong = int(np.argsort(-rows[right.path[-1]], kind="stable")[rank])
        return Accepted(right.path, [*right.tokens[:-1], wrong])

    return sabotaged


@pytest.mark.slow
def test_the_embedded_pair_is_identical(model: Model) -> None:
    findings = found(model)
    assert [(one.kind, one.temperature) for one in findings] == [
        (kind, temperature) for kind in ("code", "prose") for temperature in (0.0, 0.8)
    ]
    for one in findings:
        assert (one.outcome, one.divergence, one.is_failure) == ("identical", None, False)
        assert one.n_drafted > 0
        assert one.n_passes < one.n_tokens <= 32


PENALIZED = replace(SETTINGS.sampling, repeat_penalty=1.2, presence_penalty=0.2, logit_bias=((5, 3.0),))


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "amplified"), [(SETTINGS.sampling, 1.0), (PENALIZED, 1.2)])
def test_texts_that_rounding_parts_are_near_ties(
    model: Model, monkeypatch: pytest.MonkeyPatch, sampling: SamplingParameters, amplified: float
) -> None:
    """As on a backend whose passes over several tokens move every logit by up to 0.3."""

    def rounded(target: TargetContext, tree: TokenTree, rows: Logits) -> Logits:
        if len(tree) == 1:
            return rows
        rng = np.random.default_rng([*tree.tokens.tolist(), *target.tokens])
        return rows + rng.uniform(-0.3, 0.3, rows.shape).astype(np.float32)

    change_scores(monkeypatch, rounded)
    findings = found(model, replace(SETTINGS, sampling=sampling))
    assert {one.outcome for one in findings} <= {"identical", "near-tie"}
    ties = [one.divergence for one in findings if one.divergence]
    assert len(ties) > 1
    for tie in ties:
        assert tie.gap is not None
        assert 0 <= tie.gap <= tie.explained <= 1.5 * 2 * 0.3 * amplified / 0.8 + 1e-4
        assert tie.explained > 0.2
        assert tie.plain != tie.speculated


@pytest.mark.slow
def test_a_k_quant_parts_only_at_near_ties(k_quant: Model) -> None:
    findings = found(k_quant, replace(SETTINGS, max_tokens=64))
    assert {one.outcome for one in findings} <= {"identical", "near-tie"}
    assert all(one.n_drafted for one in findings)


@pytest.mark.slow
def test_a_wrong_token_is_an_error_even_if_it_is_the_next_likeliest(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    for temperature in (0.0, 0.8):
        monkeypatch.setattr(generation, "accept", wrong_after(2, rank=1 if temperature == 0 else 30))
        one = found(model, replace(SETTINGS, temperatures=(temperature,)), PROMPTS[:1])[0]
        assert one.outcome == "different"
        assert one.divergence is not None
        assert one.divergence.gap is not None
        assert one.divergence.gap > one.divergence.explained == 0
        assert one.divergence.at > 0
        monkeypatch.undo()


@pytest.mark.slow
def test_a_wrong_token_is_told_from_rounding(k_quant: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "accept", wrong_after(1, rank=40))
    one = found(k_quant, replace(SETTINGS, temperatures=(0.0,)), PROMPTS[:1])[0]
    assert one.outcome == "different"
    assert one.divergence is not None
    assert one.divergence.gap is not None
    assert 0 < one.divergence.explained < one.divergence.gap


@pytest.mark.slow
def test_an_error_of_three_tenths_of_a_logit_is_found(k_quant: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a bug that moves the logits of drafted passes by several times what their size does."""
    accept = generation.accept

    def wrong(rule: Any, draft: Any, rows: Any, sampler: Any, tokens: Any) -> Accepted:
        if len(draft.tree) > 1:
            rng = np.random.default_rng(list(tokens))
            rows = rows + rng.uniform(-0.3, 0.3, rows.shape).astype(np.float32)
        accepted: Accepted = accept(rule, draft, rows, sampler, tokens)
        return accepted

    monkeypatch.setattr(generation, "accept", wrong)
    findings = found(k_quant, replace(SETTINGS, max_tokens=64))
    assert "different" in {one.outcome for one in findings}


def test_where_passes_are_exact_no_difference_is_a_near_tie(k_quant: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k_quant, "exactness", replace(k_quant.exactness, is_exact=True))
    monkeypatch.setattr(generation, "accept", wrong_after(1, rank=1))
    one = found(k_quant, replace(SETTINGS, temperatures=(0.0,)), PROMPTS[:1])[0]
    assert one.divergence is not None
    assert (one.outcome, one.divergence.explained) == ("different", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "outcome"), [("block-verification", "same distribution"), ("typical", "other distribution")]
)
@pytest.mark.parametrize("sampling", [SETTINGS.sampling, PENALIZED])
def test_rules_that_compare_distributions_are_tested_over_seeds(
    name: str, outcome: str, sampling: SamplingParameters
) -> None:
    with model_of(METHODS[name].plan(depth=3)) as loaded:
        greedy, sampled = found(loaded, replace(SETTINGS, sampling=sampling, n_seeds=200), PROMPTS[:1])
    assert (greedy.outcome, greedy.test) == ("identical", None)
    assert (sampled.outcome, sampled.divergence) == (outcome, None)
    assert sampled.is_lossy == (name == "typical")
    assert sampled.test is not None
    assert sum(sampled.test.observed) == 200
    assert sum(sampled.test.expected) == pytest.approx(200)


def test_prompts_that_do_not_fit_are_left_out(model: Model) -> None:
    notes: list[str] = []
    long = BenchPrompt("code", "x = 1\n" * 200)
    run = Run(note=notes.append)
    findings = list(Verifier(model, replace(SETTINGS, temperatures=(0.0,)), run).findings([PROMPTS[0], long]))
    assert len(findings) == 1
    assert "left out 1 of 2 prompts" in notes[0]
    with pytest.raises(PromptError, match="--ctx-size"):
        found(model, SETTINGS, [long])


def test_how_long_it_takes_is_told_by_the_first_prompt_in_all_ways(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain decoding, which comes first, may be the fastest; it was told from the first twentieth on."""
    seconds, notes, shown = [0.0], list[str](), list[str]()

    def written(_self: Verifier, _prompt: list[int], _sampling: SamplingParameters, plans: PlanChooser) -> _Text:
        seconds[0] += 60 if plans.plan().drafts else 20
        return _Text([1], [1])

    monkeypatch.setattr(clock, "now", lambda: seconds[0])
    monkeypatch.setattr(Verifier, "_write", written)
    list(Verifier(model, SETTINGS, Run(note=notes.append)).findings(PROMPTS))
    what = "4 texts, each written plainly and with speculation and compared"
    assert notes == [f"{what}: about 3 min more, as the first 50% took 3 min"]
    list(Verifier(model, replace(SETTINGS, temperatures=(0.0,)), Run(shown.append, notes.append)).findings(PROMPTS[:1]))
    assert len(notes) == 1, "one prompt tells nothing of a rest"
    assert shown
    assert not any("left" in text for text in shown)


def test_ctrl_c_ends_it(model: Model) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(Verifier(model, SETTINGS, Run(interrupted=lambda: True)).findings(PROMPTS))
