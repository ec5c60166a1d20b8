"""Cost tables from a timer that is a function: cliffs are located, and a disturbed round changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, LlamaContext, Logits
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.tree import TokenTree
from specrun.tuning.pass_timer import DraftTimer, TargetTimer, Timings, refine, rounds, table
from tests.engines import code_prompts, engine
from tests.hybrids import KINDS, random_recurrent


class Clock:
    """A pass timer whose passes take what a function says, and which counts them."""

    def __init__(self, ms: Callable[[int, int], float]) -> None:
        self._ms = ms
        self._ctx = 0
        self.n_passes = 0
        self.slow_between = range(0)

    def fill(self, ctx: int) -> None:
        self._ctx = ctx

    def ms(self, n: int) -> float:
        self.n_passes += 1
        return self._ms(n, self._ctx) * (5.0 if self.n_passes in self.slow_between else 1.0)


FOREVER, OVER = Run(), Run().stage(-1)


@pytest.mark.parametrize("cliff", [5, 9, 23, 32, 33, 64])
def test_a_cliff_is_located_to_the_token(cliff: int) -> None:
    clock = Clock(lambda n, _: 100.0 + n + (300.0 if n >= cliff else 0.0))
    measured = table(clock, [1, 2, 4, 8, 16, 32, 64], [64], 3, FOREVER)
    assert {cliff - 1, cliff} <= set(measured.sizes)
    assert measured.ms(cliff, 64) - measured.ms(cliff - 1, 64) == pytest.approx(301.0)


def test_every_pass_of_the_target_has_other_tokens(random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chains: list[list[int]] = []
    score = TargetContext.score

    def noted(target: TargetContext, tree: TokenTree) -> Logits:
        chains.append(tree.tokens.tolist())
        return score(target, tree)

    monkeypatch.setattr(TargetContext, "score", noted)
    config = ContextConfig(64, 1, 32, 8, LlamaSettings(threads=1))
    with LlamaModel(random_model) as model, LlamaContext(model, config) as context:
        target = TargetContext(context)
        timer = TargetTimer(target, range(10, 20))
        timer.fill(5)
        for n in (1, 1, 4, 8):
            assert timer.ms(n) > 0
            assert target.n_cached == 5
        timer.fill(6)
        assert target.tokens == [10, 11, 12, 13, 14, 15, 16]
        assert target.n_cached == 6
    assert chains == [[10], [11], [12, 13, 14, 15], [16, 17, 18, 19, 10, 11, 12, 13]]


def test_a_straight_line_is_not_looked_into() -> None:
    clock = Clock(lambda n, _: 50.0 + 3.0 * n)
    measured = Timings(64, {n: [50.0 + 3.0 * n] for n in (1, 2, 4, 8, 16, 32, 64)})
    refine(clock, measured, 3, FOREVER)
    assert len(measured.ms) <= 12, "one look into the middle of every interval"
    assert all(ms[0] == pytest.approx(50 + 3 * n) for n, ms in measured.ms.items())


def test_a_disturbed_round_changes_nothing() -> None:
    clock = Clock(lambda n, _: 10.0 * n)
    clock.slow_between = range(5, 8)
    measured = rounds(clock, 64, [1, 2, 4], 3, FOREVER)
    assert [max(ms) / min(ms) for ms in measured.ms.values()] == [5.0] * 3
    assert [t.ms for t in measured.pass_times()] == pytest.approx([10.0, 20.0, 40.0])


def test_when_the_time_is_over_two_rounds_are_there() -> None:
    measured = rounds(Clock(lambda n, _: float(n)), 64, [1, 2, 4], 50, OVER)
    assert [(t.n, t.samples) for t in measured.pass_times()] == [(1, 2), (2, 2), (4, 2)]


def test_other_contexts_are_measured_at_fewer_sizes() -> None:
    clock = Clock(lambda n, ctx: 100.0 + n * ctx / 100)
    measured = table(clock, [1, 2, 3, 4, 6, 8], [64, 1024], 3, FOREVER)
    assert {t.n for t in measured.times if t.ctx == 1024} == {1, 2, 4, 8}
    assert measured.ms(6, 1024) == pytest.approx(100 + 6 * 10.24, rel=0.02)


@pytest.mark.parametrize(("plain_ms", "contexts"), [(50.0, {64, 1024}), (500.0, {64, 1024}), (5000.0, {64})])
def test_a_longer_context_is_left_out_only_where_passes_are_long_and_time_is_over(
    plain_ms: float, contexts: set[int]
) -> None:
    clock = Clock(lambda n, ctx: plain_ms + n * ctx / 100)
    measured = table(clock, [1, 2, 4, 8, 16, 32], [64, 1024], 3, OVER)
    assert {t.ctx for t in measured.times} == contexts
    assert {t.n for t in measured.times if t.ctx == 1024} <= {1, 4, 16}


def test_a_longer_context_never_makes_a_pass_cheaper() -> None:
    clock = Clock(lambda n, ctx: 100.0 + n if ctx == 64 else 80.0 + 20.0 * n)
    measured = table(clock, [1, 2, 4, 8], [64, 1024], 3, FOREVER)
    assert measured.ms(1, 1024) == pytest.approx(101.0), "measured were 100"
    assert measured.ms(4, 1024) == pytest.approx(160.0)


class Replayed(Clock):
    """Passes that take half as long where the pass before had the same size."""

    def __init__(self, ms: Callable[[int], float]) -> None:
        super().__init__(lambda n, _: ms(n))
        self.sizes: list[int] = []

    def ms(self, n: int) -> float:
        self.sizes.append(n)
        return super().ms(n) * (0.5 if self.sizes[-2:] == [n, n] else 1.0)


@pytest.mark.parametrize("sizes", [[1, 2, 4, 8], [1, 2], [1, 2, 64]])
def test_short_passes_of_trees_do_not_gain_by_being_repeated(sizes: list[int]) -> None:
    clock = Replayed(lambda n: 1.0 + n / 8)
    times = {t.n: t.ms for t in rounds(clock, 64, sizes, 3, FOREVER).pass_times()}
    assert times.pop(1) == pytest.approx((1.0 + 1 / 8) / 2), "as plain decoding repeats it"
    assert times == {n: pytest.approx(1.0 + n / 8) for n in sizes[1:]}
    between = Timings(64, {n: [1.0] for n in (1, 8)})
    refine(clock, between, 5, FOREVER)
    assert between.ms[4] == [1.5] * 5


def test_repeating_short_passes_in_turn_takes_no_more_of_them() -> None:
    clock = Replayed(lambda n: 1.0 + n / 8)
    rounds(clock, 64, [1, 2, 4, 8, 16], 1, FOREVER)
    counts = {n: clock.sizes.count(n) for n in (2, 4, 8, 16)}
    assert counts == {2: 6, 4: 5, 8: 4, 16: 3}
    assert clock.sizes.count(1) == 1 + 9, "none in between"


def test_long_passes_have_nothing_in_between() -> None:
    clock = Replayed(lambda n: 20.0 * n)
    refine(clock, Timings(64, {n: [20.0 * n] for n in (1, 3)}), 4, FOREVER)
    assert clock.sizes == [2, 2, 2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_passes_leave_recurrent_states_as_they_were(tmp_path: Path, kind: str) -> None:
    target = random_recurrent(tmp_path / "target.gguf", kind)
    with engine(target, target, CHAIN.plan(depth=8)) as e:
        assert e.draft
        tokens = code_prompts(e, 1, 100)[0]
        timer = TargetTimer(e.target, tokens)
        timer.fill(64)
        state = e.target.context.sequence_state(0).tobytes()
        for n in (1, 4, min(9, e.target.room())):
            assert timer.ms(n) > 0
            assert e.target.context.sequence_state(0).tobytes() == state
        draft = DraftTimer(e, tokens)
        draft.fill(64)
        assert all(draft.ms(n) > 0 for n in (1, 4, 8))
