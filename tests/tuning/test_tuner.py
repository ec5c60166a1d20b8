"""What the stages of `specrun tune` measure: real models and the real code, mostly with a simulated machine's clock."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.growth import CandidateRows, ModelCandidates, TreeGrowth
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostTable
from specrun.tuning.pass_timer import TargetTimer
from specrun.tuning.tuner import Effort, Tuner
from specrun.tuning.unfinished import Stages, UnfinishedRun
from tests.hybrids import noisy, random_recurrent
from tests.models import edited, random_llama

SCRIPTS = Path(__file__).parents[2] / "scripts"
TARGET, DRAFT = "specrun demo target", "simulated draft"  # the names by which a simulation knows the models
BUDGET = 256
SHORT = Effort(seconds=5, rounds=2, n_texts=2, n_tokens=24)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A block in which passes take the milliseconds of two tables, of the target's and of the draft's passes."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    simulated, tables = (importlib.import_module(f"machines.{name}") for name in ("simulated", "tables"))
    return lambda target, draft: simulated.simulated(tables.Machine("", "", target, draft))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Small models that agree often."""
    folder = tmp_path_factory.mktemp("pair")
    plain = random_llama(folder / "plain.gguf", n_ctx=2048)
    target = edited(folder / "target.gguf", plain, {"general.name": TARGET})
    draft = noisy(folder / "noisy.gguf", plain)
    return target, edited(folder / "draft.gguf", draft, {"general.name": DRAFT})


@contextmanager
def tuner(target: Path, draft: Path | None, key: str = "", run: Run | None = None) -> Iterator[Tuner]:
    one = LlamaSettings(threads=1)
    plans = (OFF.plan(), MERGED.plan(BUDGET, BUDGET - 1))
    options = RunOptions(target, draft, plans, ctx_size=1024, settings=one, draft_settings=one)
    with Model(options) as model:
        yield Tuner(model, SHORT, [0.8, 0.0], UnfinishedRun({"of": "this"}, key), run or Run())


def measured(target: Path, draft: Path | None) -> Stages:
    with tuner(target, draft) as one:
        return one.measure()


def table_of(tuned: Stages) -> CostTable:
    assert tuned.target
    return tuned.target


@pytest.mark.slow
def test_where_passes_are_slow_and_flat_trees_are_large_and_passes_few(
    on: Callable[..., Any], pair: tuple[Path, Path]
) -> None:
    with on({1: 1000.0, 512: 1100.0}, {1: 5.0, 64: 8.0}) as simulation, tuner(*pair) as one:
        before = simulation.seconds
        tuned = one.measure()
    assert simulation.seconds - before < 75, "plain passes"
    assert {1, 4, 16, 64} <= set(table_of(tuned).sizes)
    assert table_of(tuned).largest >= BUDGET
    assert tuned.learned
    for plan in tuned.learned.plans:
        assert plan.plan.method is MERGED
        assert plan.plan.budget >= BUDGET
        assert plan.predicted_tokens_per_second > 2 * plan.plain_tokens_per_second


@pytest.mark.slow
def test_sizes_climb_until_they_cannot_pay(on: Callable[..., Any], pair: tuple[Path, Path]) -> None:
    with on({n: 20.0 * n for n in (1, 512)}, {1: 2.0, 64: 10.0}):
        tuned = measured(*pair)
    assert table_of(tuned).largest == 16, "one of 32 takes as long as 32 plain passes"
    assert tuned.learned
    assert all(one.plan == OFF.plan() for one in tuned.learned.plans), "and nothing pays"


@pytest.mark.slow
def test_plans_and_acceptance_are_those_of_texts_at_each_temperature(
    on: Callable[..., Any], pair: tuple[Path, Path]
) -> None:
    with on({1: 50.0, 64: 60.0, 512: 300.0}, {1: 2.0, 64: 4.0}):
        tuned = measured(*pair)
    assert tuned.learned
    assert [plan.temperature for plan in tuned.learned.plans] == [0.8, 0.0]
    for plan, acceptance in zip(tuned.learned.plans, tuned.learned.acceptance, strict=True):
        assert acceptance.temperature == plan.temperature
        rates = [one.tokens_per_second for one in plan.expected]
        assert rates == sorted(rates, reverse=True)
        assert rates[0] == plan.predicted_tokens_per_second
        assert {one.plan.method for one in plan.expected} == {MERGED, OFF}
        assert all(one.error > 0 for one in plan.expected)
        assert plan.plain_tokens_per_second == pytest.approx(20, rel=0.1)
        assert plan.predicted_tokens_per_pass > 1.5
        assert 0.3 < acceptance.calibration.agreement <= 1
        assert acceptance.calibration.n_counted > 0


@pytest.mark.slow
def test_the_draft_table_has_our_own_work_as_texts_show_it(
    on: Callable[..., Any], pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = ModelCandidates.candidates
    with on({1: 100.0, 512: 120.0}, {1: 2.0, 64: 4.0}) as simulation:

        def slowly(self: ModelCandidates, growth: TreeGrowth, nodes: Sequence[int], rows: Any) -> CandidateRows:
            simulation.seconds += (3.0 + 0.2 * len(nodes)) / 1e3
            return candidates(self, growth, nodes, rows)

        monkeypatch.setattr(ModelCandidates, "candidates", slowly)
        learned = measured(*pair).learned
    assert learned
    table = learned.draft
    assert table
    assert {1, 8, 64} <= set(table.sizes), "all sizes that were timed"
    assert table.ms(16, 0) == pytest.approx(2.5 + 3.0 + 0.2 * 16, rel=0.1), "which is about the width of most"
    assert table.ms(1, 0) > 2 * 2.0
    assert table.ms(64, 0) > 2 * 4.0


@pytest.mark.slow
def test_without_a_draft_the_target_alone_is_measured(on: Callable[..., Any], pair: tuple[Path, Path]) -> None:
    with on({1: 50.0, 512: 60.0}, {1: 1.0}):
        tuned = measured(pair[0], None)
    assert tuned.learned
    assert (tuned.learned.acceptance, tuned.learned.draft) == ([], None)
    assert [one.plan for one in tuned.learned.plans] == [OFF.plan()] * 2


@pytest.mark.slow
def test_an_interrupted_run_goes_on_behind_the_stages_that_are_over(
    on: Callable[..., Any], pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def has_come_to_the_draft() -> bool:
        return bool(shown and shown[-1].startswith("draft: "))

    with on({1: 50.0, 512: 60.0}, {1: 1.0, 64: 2.0}):
        interrupted = Run(display=shown.append, interrupted=has_come_to_the_draft)
        with tuner(*pair, "key", interrupted) as one, pytest.raises(KeyboardInterrupt):
            one.measure()
        kept = UnfinishedRun({"of": "this"}, "key")
        assert kept.is_resumed
        assert kept.stages.target
        assert kept.stages.draft is None
        assert not UnfinishedRun({"of": "this"}, "another effort").is_resumed
        monkeypatch.setattr(TargetTimer, "ms", None)  # the target's passes are not timed again
        with tuner(*pair, "key") as again:
            assert table_of(again.measure()).times == kept.stages.target.times


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen35", "mamba"])
def test_a_target_whose_passes_check_one_path_is_tuned_over_chains(
    on: Callable[..., Any], kind: str, tmp_path: Path
) -> None:
    plain = random_recurrent(tmp_path / "plain.gguf", kind)
    target = edited(tmp_path / "target.gguf", plain, {"general.name": TARGET})
    draft = edited(tmp_path / "draft.gguf", noisy(tmp_path / "noisy.gguf", plain), {"general.name": DRAFT})
    with on({1: 100.0, 512: 200.0}, {1: 2.0, 64: 10.0}):
        tuned = measured(target, draft)
    assert tuned.learned
    assert tuned.learned.draft
    for plan, acceptance in zip(tuned.learned.plans, tuned.learned.acceptance, strict=True):
        assert acceptance.calibration.agreement > 0.3
        assert {one.plan.method for one in plan.expected} == {MERGED, OFF}
        assert plan.predicted_tokens_per_pass > 1.5
