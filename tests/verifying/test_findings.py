"""The sentence about all findings, and the objects of --json."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from specrun.sampling import Sampler, SamplingParameters
from specrun.verifying.findings import Divergence, Finding, SeedTest, chi_square_p_value, failure, near_tie_gap, verdict

SAME = Finding("code", "x", 0.0, 0, "tree of 16 nodes, 8 deep", n_tokens=60, n_passes=20, n_drafted=19)
TIE = replace(SAME, divergence=Divergence(7, 0.01, 0.25, "a b", "a c"))
WRONG = replace(SAME, divergence=Divergence(7, 2.0, 0.25, "a b", "a c"))
PLAIN = replace(SAME, n_drafted=0, n_passes=60)
TESTED = replace(SAME, temperature=0.8, test=SeedTest((52, 48, 0), (50.0, 50.0, 0.0)))
LOSSY = replace(TESTED, is_lossy=True, plan="typical", test=SeedTest((90, 10, 0), (50.0, 50.0, 0.0)))


def test_the_sentence_answers_the_question() -> None:
    assert verdict([SAME, SAME]) == "No: all 2 texts with speculation came out the same, at 3.0 tokens a pass."
    near = verdict([SAME, TIE])
    assert near.startswith("No, apart from rounding: 1 of 2 texts with speculation came out the same")
    assert "1 parts where two tokens were nearly equal (by 0.01 at most" in near
    assert "--exact prevents that" in near
    assert verdict([SAME, WRONG]).startswith("Yes: of 2 results 1 cannot be what the target alone writes")
    assert "over 100 seeds" in verdict([SAME, TESTED])
    assert verdict([SAME, LOSSY]).startswith("Yes, by design: typical")


def test_what_did_not_speculate_proves_nothing() -> None:
    nothing = verdict([PLAIN, PLAIN])
    assert nothing.startswith(
        "This shows nothing, so there is no table. In 2 results no pass drafted: nothing was guessed"
    )


def test_what_has_no_row_is_counted_whatever_the_answer_is() -> None:
    """Without a draft no choice was made that could pay or not: the draft sources found nothing."""
    why = "no pass drafted: nothing was guessed, or it was not expected to pay."
    for shown in ([SAME], [SAME, TIE], [SAME, WRONG], [SAME, LOSSY], [SAME, TESTED]):
        said = verdict([*shown, PLAIN, PLAIN])
        assert said == f"{verdict(shown)} In 2 more, which the table leaves out, {why}"


def test_what_differs_has_a_row_and_is_not_counted_as_left_out() -> None:
    undrafted = [replace(one, n_drafted=0) for one in (TIE, WRONG, LOSSY)]
    assert [one.is_shown for one in [*undrafted, PLAIN, SAME]] == [True, True, True, False, True]
    assert verdict([WRONG, replace(WRONG, n_drafted=0)]).startswith("Yes: of 2 results 2 cannot")
    assert verdict(undrafted[1:2]) == "Yes: of 1 results 1 cannot be what the target alone writes."
    assert "left out" not in verdict([SAME, *undrafted[:1]])


def test_the_error_says_where_and_what_to_do() -> None:
    assert "wrong from token 7 on" in failure([WRONG])
    assert "--speculate off" in failure([WRONG])
    assert "p-value" in failure([LOSSY])
    assert "lossy" in failure([LOSSY])


def test_a_text_that_only_ends_earlier_is_no_near_tie() -> None:
    early = replace(SAME, divergence=Divergence(7, None, 0.25, "a b", "a"))
    assert early.is_failure
    assert early.as_json()["logit_gap"] is None


def test_objects_have_what_others_rely_on() -> None:
    tie, test = (json.loads(json.dumps(one.as_json())) for one in (TIE, TESTED))
    assert (tie["prompt"], tie["temp"], tie["identical"], tie["first_divergence"], tie["logit_gap"]) == (
        "x", 0.0, False, 7, 0.01
    )  # fmt: skip
    assert (tie["outcome"], tie["explained_gap"]) == ("near-tie", 0.25)
    assert (test["identical"], test["first_divergence"], test["seeds"]) == (None, None, 100)
    assert test["p_value"] > 0.5
    assert SAME.as_json()["identical"] is True


N_VOCAB = 60
UNFILTERED = SamplingParameters(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters",
    [
        replace(UNFILTERED, temperature=0.0),
        UNFILTERED,
        replace(UNFILTERED, top_k=4),
        replace(UNFILTERED, top_p=0.8),
        replace(UNFILTERED, min_p=0.3),
        replace(UNFILTERED, temperature=1.5, top_k=12, top_p=0.9, min_p=0.05),
        replace(UNFILTERED, top_k=4, repeat_penalty=1.6, presence_penalty=0.4, logit_bias=((9, 2.0),)),
        replace(UNFILTERED, temperature=0.0, repeat_penalty=0.5, frequency_penalty=0.3),
    ],
    ids=str,
)
def test_a_change_of_all_logits_explains_every_token_that_it_brings(parameters: SamplingParameters) -> None:
    rng, sampler = np.random.default_rng(0), Sampler(parameters, N_VOCAB)
    scale = parameters.temperature or 1.0
    recent = list(range(20, 50)) if parameters.has_penalties else []
    amplified = max(parameters.repeat_penalty, 1 / parameters.repeat_penalty)
    gaps = []
    for position in range(1500):
        row = (2 * rng.standard_normal(N_VOCAB)).astype(np.float32)
        change = 0.1
        moved = row + (change * rng.choice([-1.0, 1.0], N_VOCAB)).astype(np.float32)
        token, other = (sampler.sample(one, position, recent) for one in (row, moved))
        if token != other:
            gaps.append(near_tie_gap(sampler, row, position, recent, token, other))
            assert 0 <= gaps[-1] <= 2 * change * amplified / scale + 1e-5
    assert len(gaps) > 20


@pytest.mark.parametrize(
    ("filters", "distance"),
    [
        ({"top_k": 2}, 1.0),  # from the second logit
        ({"min_p": math.exp(-2.5)}, 0.5),  # from 2.5 below the first
    ],
)
def test_a_token_that_a_filter_cut_is_as_far_as_the_filter(filters: dict[str, float], distance: float) -> None:
    row = np.array([4.0, 2.0, 1.0, -9.0], np.float32) if "top_k" in filters else np.array([4.0, 1.0, 0.0], np.float32)
    sampler = Sampler(replace(UNFILTERED, **filters), len(row))
    cut = 2 if "top_k" in filters else 1
    likes_it = next(at for at in range(20_000) if sampler.scores(row, at, np.arange(len(row))).argmax() == cut)
    token = sampler.sample(row, likes_it, ())
    assert token != cut
    assert near_tie_gap(sampler, row, likes_it, (), token, cut) == pytest.approx(distance / 0.8, rel=1e-5)


def test_a_clear_choice_has_a_wide_gap() -> None:
    row = np.zeros(N_VOCAB, np.float32)
    row[7] = 12.0
    for parameters in (replace(UNFILTERED, temperature=0.0), replace(UNFILTERED, top_k=40, top_p=0.95, min_p=0.05)):
        sampler = Sampler(parameters, N_VOCAB)
        assert sampler.sample(row, 3, ()) == 7
        assert near_tie_gap(sampler, row, 3, (), 7, 8) > 5


SHARES = np.array([0.5, 0.3, 0.15, 0.05])


def test_samples_of_the_distribution_give_any_p_value_and_others_a_tiny_one() -> None:
    rng = np.random.default_rng(0)
    own = [chi_square_p_value(rng.multinomial(500, SHARES), 500 * SHARES) for _ in range(400)]
    assert min(own) > 1e-4
    assert np.mean(np.array(own) < 0.1) == pytest.approx(0.1, abs=0.05)
    other = rng.multinomial(500, [0.35, 0.45, 0.15, 0.05])
    assert chi_square_p_value(other, 500 * SHARES) < 1e-4


def test_a_value_of_the_table() -> None:
    # The 95th percentile of chi-square with 3 degrees of freedom is 7.815.
    expected = np.full(4, 100.0)
    shift = np.sqrt(7.815 * 100 / 4)
    assert chi_square_p_value(expected + shift * np.array([1, -1, 1, -1]), expected) == pytest.approx(0.05, abs=0.002)


def test_rare_cells_are_pooled_and_the_impossible_has_probability_zero() -> None:
    assert chi_square_p_value([95, 3, 2], [95, 2.5, 2.5]) == chi_square_p_value([95, 5], [95, 5])
    assert chi_square_p_value([100, 0], [100, 0]) == 1.0
    assert chi_square_p_value([99, 1], [100, 0]) == 0.0
