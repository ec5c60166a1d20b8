"""The two texts of the demonstration are the same, read the same weights from disk, and are told of as measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import specrun
from specrun import demo as wide_pair
from specrun.catalog.entries import catalog
from specrun.demo import ASKED, N_DRAFTED, Comparison, outlook
from specrun.display_text import size_text
from specrun.loading.local_fit import LocalFits
from specrun.loading.model import Model
from specrun.long_run import Run


@pytest.fixture
def model() -> Iterator[Model]:
    with specrun.load(learn=False, speculate="chain", depth=N_DRAFTED, threads=1) as model:
        yield model


def written(model: Model, most_tokens: int = 24) -> Comparison:
    comparison = Comparison(model, most_tokens)
    list(comparison.write())
    return comparison


def test_both_texts_are_written_in_turn_and_are_the_same(model: Model) -> None:
    comparison = Comparison(model, 24)
    pieces = ["", ""]
    order = []
    for which, piece in comparison.write():
        pieces[which] += piece
        order.append(which)
    assert order == sorted(order)
    assert pieces[0] == pieces[1] == comparison.plain.text == comparison.fast.text
    assert comparison.plain.statistics.tokens_per_pass == 1
    assert comparison.plain.statistics.completion_tokens == comparison.fast.statistics.completion_tokens == 24
    assert comparison.plain.statistics.prompt_tokens_decoded == comparison.fast.statistics.prompt_tokens_decoded > 0
    assert comparison.verdict.startswith("the same text, ")


def test_ctrl_c_ends_it(model: Model) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(Comparison(model).write(lambda: True))


@pytest.mark.slow
def test_both_texts_read_the_same_weights_from_disk_and_write_what_is_written_in_ram(
    opened: Callable[[int | None], Model],
) -> None:
    with opened(wide_pair.MOST_RAM) as model:
        streamed = written(model)
        assert streamed.is_streamed
        n_bytes = model.residency.streamed_bytes
        for completion in (streamed.plain, streamed.fast):
            s = completion.statistics
            assert s.bytes_read == pytest.approx(s.passes * n_bytes, rel=0.5)  # what is read ahead is counted too
        assert "from disk" in streamed.verdict
        assert "in both texts alike" in streamed.announcement
    with opened(None) as model:
        in_ram = written(model)
        assert not in_ram.is_streamed
        assert "from disk" not in in_ram.verdict
        assert "both texts are written from RAM" in in_ram.announcement
    assert {c.plain.text for c in (streamed, in_ram)} == {c.fast.text for c in (streamed, in_ram)}
    sentence, _ = outlook([streamed, in_ram], wide_pair.wide_pair(Run())[0], catalog(), is_busy=False)
    disk = streamed.plain.statistics.bytes_read / streamed.plain.statistics.seconds
    assert f"{size_text(disk)}/s from disk (measured)" in sentence
    assert "/s from RAM (measured)" in sentence
    assert LocalFits.now(catalog()).rates_text in sentence, "`specrun models list` estimates by the same rates"


def test_the_sentence_says_what_a_pass_brought_and_took(model: Model) -> None:
    comparison = written(model)
    comparison.plain.statistics.seconds, comparison.fast.statistics.seconds = 4.0, 2.0
    comparison.fast.statistics.passes = 6
    assert comparison.verdict == (
        "the same text, 2.0 times as fast: each pass of the large model brought 4.0 tokens instead of 1, and took "
        "2.0 times as long"
    )
    rates = "6.00 tokens/s plainly and 12.0 with the same drafts"
    assert f"{rates}, 2.0 times as fast: on this machine drafts pay there too" in comparison.beside
    comparison.fast.statistics.seconds = 4.0
    assert "1.0 times as fast: drafts pay where passes wait for weights" in comparison.beside


@pytest.mark.slow
def test_the_sentence_where_rounding_parted_the_texts(model: Model) -> None:
    comparison = written(model)
    comparison.fast.token_ids[7] += 1
    assert comparison.verdict.startswith("the same text for 7 tokens, where rounding decided")


@pytest.mark.slow
def test_models_that_people_run_are_placed_on_this_machine(model: Model, demo_target: Path) -> None:
    in_ram = written(model)
    in_ram.plain.statistics.seconds = in_ram.fast.statistics.seconds = 1.0
    sentence, found = outlook([in_ram], demo_target, catalog(), is_busy=True)
    assert [entry.alias for entry, _, _ in found] == list(ASKED)
    assert all(fast >= fit.tokens_per_second >= 0 for _, fit, fast in found)
    assert "from disk (assumed)" in sentence  # nothing was read from it
    assert "from RAM (measured while other programs held cores)" in sentence
