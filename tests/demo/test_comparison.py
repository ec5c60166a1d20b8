"""The two texts of the demonstration are the same, and the sentence about them says what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import specrun
from specrun.demo import comparison as comparison_module
from specrun.demo.comparison import Comparison
from specrun.engine.model import Model


@pytest.fixture
def model() -> Iterator[Model]:
    with specrun.load(learn=False) as model:
        yield model


def test_both_texts_are_written_in_turn_and_are_the_same(model: Model) -> None:
    comparison = Comparison(model)
    pieces = ["", ""]
    order = []
    for which, piece in comparison.write():
        pieces[which] += piece
        order.append(which)
    assert order == sorted(order)
    assert pieces[0] == pieces[1] == comparison.plain.text == comparison.fast.text
    assert comparison.plain.statistics.tokens_per_pass == 1
    assert comparison.plain.statistics.prompt_tokens_decoded == comparison.fast.statistics.prompt_tokens_decoded > 0
    assert comparison.verdict.startswith("the same text, ")


def test_ctrl_c_ends_it(model: Model) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(Comparison(model).write(lambda: True))


def written(model: Model) -> Comparison:
    comparison = Comparison(model)
    list(comparison.write())
    return comparison


def test_the_sentence_where_it_pays(model: Model) -> None:
    comparison = written(model)
    comparison.plain.statistics.seconds, comparison.fast.statistics.seconds = 4.0, 2.0
    comparison.fast.statistics.passes = 40
    assert comparison.verdict == (
        "the same text, 2.0 times as fast: each pass of the large model brought 4.0 tokens instead of 1"
    )


def test_the_sentence_where_it_does_not_pay_says_why(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = written(model)
    plain, fast = comparison.plain.statistics, comparison.fast.statistics
    plain.seconds, plain.target_seconds, plain.passes = 2.0, 1.6, 160
    fast.seconds, fast.target_seconds, fast.passes = 2.0, 2.0, 40
    monkeypatch.setattr(comparison_module, "_gave_up", lambda _: False)
    words = "a pass over a token tree took 5.0 times as long as one over a token, and brought 4.0 tokens"
    assert f"1.00 times as fast, so speculation does not pay here: {words}" in comparison.verdict
    monkeypatch.setattr(comparison_module, "_gave_up", lambda _: True)
    assert "left it off by itself, because passes over several tokens cost more here" in comparison.verdict


def test_the_sentence_where_rounding_parted_the_texts(model: Model) -> None:
    comparison = written(model)
    comparison.fast.token_ids[7] += 1
    assert comparison.verdict.startswith("the same text for 7 tokens, where rounding decided")
