"""The sentence about all findings, and the objects of --json."""

from __future__ import annotations

import json
from dataclasses import replace

from specrun.verifying.findings import Divergence, Finding, SeedTest, failure, verdict

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
    assert verdict([PLAIN, PLAIN]).startswith("This shows nothing")
    assert verdict([SAME, PLAIN]).endswith("In 1 more, speculation turned itself off, because it did not pay.")


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
