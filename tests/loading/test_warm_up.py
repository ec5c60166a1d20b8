"""Passes that nobody waits for: on a GPU before anything is timed (here on the CPU), and those of a draft."""

from __future__ import annotations

import pytest

from specrun.catalog import embedded
from specrun.llama import DraftContext
from specrun.loading import warm_up
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.engines import code_prompts, engine, first_difference, write

GREEDY = SamplingParameters(temperature=0.0)
TREE = SPECEXEC.plan(64, 8)


@pytest.mark.slow
def test_nothing_stays_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_SECONDS", 60.0)
    with engine(embedded.TARGET, embedded.DRAFT, TREE) as pair:
        context, (prompt,) = pair.target.context, code_prompts(pair, 1, 20)
        assert context.n_passes == 0, "no layer lies on a GPU"
        before = write(pair, prompt, GREEDY, OFF.plan(), 8)
        pair.reset()
        n_passes = context.n_passes
        warm_up.warm_up(context)
        assert context.n_passes - n_passes > len(warm_up._SIZES)
        assert not context.sequence_lengths().any()
        assert first_difference(write(pair, prompt, GREEDY, OFF.plan(), 8), before) is None


def test_they_end_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_SECONDS", 0.0)
    with engine(embedded.TARGET, embedded.DRAFT, TREE) as pair:
        warm_up.warm_up(pair.target.context)
        assert pair.target.context.n_passes == 1


def test_a_drafts_passes_are_timed_while_it_is_loaded() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, TREE) as pair:
        assert isinstance(pair.draft, DraftContext)
        found = warm_up.timed(pair.draft.context)
        assert found.sizes == (1, 8)
        assert all(time.ms > 0 for time in found.times)
        assert not pair.draft.context.sequence_lengths().any()


def test_a_moment_in_which_the_core_was_busy_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(embedded.TARGET, embedded.DRAFT, TREE) as pair:
        assert isinstance(pair.draft, DraftContext)
        took = iter([9.0, 2.0, 1000.0, 2.5, 9.0, 3.0, 1000.0, 3.5])  # of each size the first pass is not timed
        monkeypatch.setattr(warm_up, "_pass", lambda *_: next(took))
        assert [time.ms for time in warm_up.timed(pair.draft.context).times] == [2.0, 3.0]
