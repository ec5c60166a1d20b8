"""A guide learns from every pass, and bounds what a pass may lose."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.sampling import Candidates
from specrun.speculation.accept import Accepted
from specrun.speculation.drafter import Draft
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import Guide, PassRecord, RunCosts
from specrun.speculation.planning.pass_times import ExpertGrowth, PassTimes
from specrun.speculation.tree import TokenTree

ROOT_ONLY = TokenTree.root_only(0)


def plain(token: int = 7, ms: float = 100.0, draft: Draft = Draft(ROOT_ONLY)) -> PassRecord:  # noqa: B008
    return PassRecord(draft, Accepted([0], [token]), ms / 1e3, ms / 1e3)


def test_the_drafts_candidates_count_even_where_no_tree_was_worth_a_pass() -> None:
    guide = Guide(RunCosts())
    candidates = Candidates(np.array([5, 7, 9]), np.log([0.6, 0.3, 0.1]))
    before = guide.calibration.chances(1, candidates.shares)
    for _ in range(10):
        guide.learn(plain(7, draft=Draft(ROOT_ONLY, (1,), candidates)))
    after = guide.calibration.chances(1, candidates.shares)
    assert guide.calibration.n_counted == 10
    assert after[0] < before[0]
    guide.learn(plain(7))
    assert guide.calibration.n_counted == 10, "what was drafted counts once"


def test_without_tables_a_pass_takes_what_it_took_with_everything_but_the_drafting() -> None:
    guide = Guide(RunCosts())
    for _ in range(4):
        guide.learn(PassRecord(Draft(ROOT_ONLY), Accepted([0], [1]), 0.103, 0.080, 0.003))
    assert guide.plain_ms(0) == pytest.approx(100.0)


def test_a_pass_may_lose_only_so_much_and_chances_count_once_they_are_known() -> None:
    guide = Guide(RunCosts(), rate=0.01)
    for n, ms in ((1, 100.0), (1, 100.0), (16, 400.0)):
        guide.costs.target.record(n, 0, ms)
    chances = np.ones(16)
    size = lambda: guide.best_size(chances, guide.target_row(0), 16, 0, asked_draft=True)[0]  # noqa: E731
    assert size() == 16
    guide.most_lost_ms = 50.0
    assert size() == 3
    for _ in range(20):
        guide.calibration.count(1, np.array([0.9]), 0)
    assert size() == 16
    guide.most_lost_ms = -np.inf
    assert size() == 1


@pytest.mark.parametrize("is_tuned", [True, False], ids=["by a table", "untuned"])
def test_in_a_mixture_a_node_costs_the_experts_that_it_adds(is_tuned: bool) -> None:
    """A short draft costs as much as it brings, and a long sure one pays; for a dense model both pay."""
    experts = ExpertGrowth(128, 8, 0.9)
    sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

    def best(chance: float, is_mixture: bool) -> int:
        row = 10 * experts.row(64) if is_mixture else 10 + 0.3 * np.arange(65)
        if is_tuned:
            costs = CostModel(CostTable([PassTime(n, 0, float(row[n])) for n in sizes]))
            guide = Guide(RunCosts.of(costs), rate=0.1)
        else:
            guide = Guide(RunCosts(PassTimes(experts=experts if is_mixture else None)), rate=0.1)
            for n in (1, 1) if is_mixture else (1, 1, 64, 64):
                guide.costs.target.record(n, 0, float(row[n]))
        return guide.best_size(chance ** np.arange(64), guide.target_row(0), 64, 0, asked_draft=False)[0]

    assert best(0.7, is_mixture=False) >= 6
    assert best(0.7, is_mixture=True) == 1
    assert best(0.98, is_mixture=True) >= 48


def test_beside_other_texts_each_node_has_its_price() -> None:
    """Passes of up to 8 tokens take 100 ms, and each further token 20 ms."""
    times = [PassTime(n, 0, 100.0 + 20 * max(n - 8, 0)) for n in (*range(1, 13), 16, 32)]
    guide = Guide(RunCosts.of(CostModel(CostTable(times))), rate=0.01)
    chances = np.full(12, 0.15)
    chances[0] = 1.0

    def best(guide: Guide) -> int:
        return guide.best_size(chances, guide.target_row(0), budget=12, pending=1, asked_draft=False)[0]

    assert best(guide) == 7  # with the pending token a pass of 8
    among = guide.among(4, rate=0.02, node_ms=7.0, n_drafting=2)
    assert len(among.target_row(0)) == int(2.5 * 32) + 1 - 4, "a few times the largest pass that was measured"
    assert best(among) == 12, "0.15 tokens for 7 ms are more than 0.02 a millisecond"
    assert among.rate == 0.02
    alone, shared = guide.levels_row(0), among.levels_row(0)
    assert shared[8] - shared[1] == pytest.approx(alone[8] - alone[1]), "each node takes its time"
    assert shared[0] == pytest.approx(alone[0] / 2), "and the least that a draft pass takes is shared"
    assert best(guide.among(4, rate=0.02, node_ms=8.0, n_drafting=2)) == 1
    assert best(guide) == 7
    assert guide.rate == 0.01


def test_drafting_before_which_the_draft_had_to_read_takes_at_most_as_long_without_reading() -> None:
    """It read the text for 0.3 s, which says nothing of its passes; where all took 1 ms, its pass took no more."""
    guide = Guide(RunCosts())
    for _ in range(4):
        guide.learn(plain())
    first = float(guide.levels_row(0)[1])
    draft = Draft(TokenTree.chain([0, 1]), (1,))
    for seconds, expected in ((0.3, pytest.approx(first)), (0.001, pytest.approx(1.0, rel=0.3))):
        guide.learn(PassRecord(draft, Accepted([0], [7]), 0.1 + seconds, 0.1, seconds), has_read=False)
        assert float(guide.levels_row(0)[1]) == expected
    before = float(guide.levels_row(0)[1])
    guide.learn(PassRecord(draft, Accepted([0], [7]), 0.11, 0.1, 0.01))
    assert float(guide.levels_row(0)[1]) > before
