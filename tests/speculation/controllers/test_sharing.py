"""Texts that share passes draft where that brings more tokens a second of all together."""

from __future__ import annotations

import pytest

from specrun.speculation.controllers.sharing import Sharing

PLAIN = 4 / 60  # tokens per millisecond of four texts without drafting


def share_that_drafted(tokens: int, ms: float, plain_ms: float = 60.0, n_passes: int = 400) -> float:
    """The share of the last half of the passes that drafted, where such a pass brings `tokens` in `ms`."""
    sharing, drafted = Sharing(), []
    for _ in range(n_passes):
        drafts = sharing.drafts(4, PLAIN)
        sharing.record(4, *((tokens, ms) if drafts else (4, plain_ms)))
        drafted.append(drafts)
    assert drafted[0]
    return sum(drafted[n_passes // 2 :]) / (n_passes // 2)


@pytest.mark.parametrize(("tokens", "ms", "wins"), [(10, 130, True), (10, 160, False), (5, 74, True), (5, 76, False)])
def test_the_faster_way_is_taken_and_the_other_one_tried_now_and_then(tokens: int, ms: float, wins: bool) -> None:
    share = share_that_drafted(tokens, ms)
    assert (0.9 < share < 1.0) if wins else (0.0 < share < 0.1)


def test_what_is_seen_without_drafting_corrects_what_was_expected() -> None:
    assert share_that_drafted(8, 130) < 0.1
    assert share_that_drafted(8, 130, plain_ms=90.0) > 0.9


@pytest.mark.parametrize(("passes", "drafts"), [(1, True), (12, False)])
def test_the_prompts_that_the_draft_reads_are_the_price_of_trying_once(passes: int, drafts: bool) -> None:
    sharing = Sharing()
    for i in range(12):
        sharing.drafts(4, PLAIN)
        sharing.record(4, 10, 400.0 if i < passes else 100.0, 300.0 if i < passes else 0.0)
    assert sharing.drafts(4, PLAIN) == drafts


def test_each_number_of_texts_is_judged_by_itself() -> None:
    sharing = Sharing()
    for _ in range(10):
        sharing.drafts(2, 1.0)
        sharing.record(2, 2, 10.0)
    assert not sharing.drafts(2, 1.0)
    assert sharing.drafts(3, 1.0)


def test_nodes_must_keep_up_with_the_faster_way() -> None:
    sharing = Sharing()
    assert sharing.rate(4, PLAIN) == PLAIN
    for _ in range(5):
        assert sharing.drafts(4, PLAIN)
        sharing.record(4, 12, 100.0)
    assert sharing.rate(4, PLAIN) == pytest.approx(0.12)
