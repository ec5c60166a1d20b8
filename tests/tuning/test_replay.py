"""A replay over a recording commits exactly what the engine commits, pass by pass, with the real pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.engine.engine import Engine
from specrun.engine.generation import Generation
from specrun.engine.passes import write_alone
from specrun.engine.request import Request
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.profiles.profile import Acceptance, TriedSettings
from specrun.profiles.profile_files import folder
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.specexec import SPECEXEC, sharpness_at
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.costs import CostModel, CostTable, Overhead, PassTime
from specrun.speculation.planning.guide import Guide
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes
from specrun.speculation.registry import METHODS
from specrun.speculation.shape import TreeShape
from specrun.tuning.acceptance_meter import AcceptanceMeter
from specrun.tuning.choose import candidates, ranked, worth_running
from specrun.tuning.rates import BLOCK, BlockTimes
from specrun.tuning.replay import Prediction, predict
from specrun.tuning.trace import MeasuredAcceptance, Trace, calibrate, record
from specrun.tuning.unfinished import Stages, UnfinishedRun, delete
from tests.engines import code_prompts, engine

LARGEST = SPECEXEC.plan(64, 12)
N_WRITTEN = 72
POSITIONAL = [0.6, 0.12, 0.05, 0.03, 0.02]
IN_ORDER = PassSizes(in_order=True)
Lengths = dict[tuple[PassSizes, Plan], list[int]]

# A pass over 64 tokens costs twice one over one, a draft pass a twentieth of it.
STREAMED = CostModel(
    CostTable([PassTime(1, 64, 100.0), PassTime(16, 64, 120.0), PassTime(64, 64, 200.0)]),
    CostTable([PassTime(1, 64, 5.0), PassTime(16, 64, 6.0)]),
)
IN_RAM = CostModel(
    CostTable([PassTime(1, 64, 10.0), PassTime(2, 64, 26.0), PassTime(64, 64, 800.0)]),
    CostTable([PassTime(1, 64, 2.0), PassTime(16, 64, 8.0)]),
)


def written(engine: Engine, prompt: list[int], sampling: SamplingParameters, plan: Plan) -> list[list[int]]:
    """The tokens of every pass."""
    engine.reset()
    plans = FixedPlan(plan, Guide(STREAMED) if plan.method.is_adaptive else None)
    return [
        step.tokens
        for step in write_alone(Generation(engine, Request(prompt, sampling, N_WRITTEN, ignore_eos=True), plans))
    ]


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "T=0.8"])
def recorded(request: pytest.FixtureRequest) -> tuple[float, list[int], Trace, Lengths]:
    """Temperature, prompt, the recording of what follows it, and the accepted lengths of plans in the engine."""
    sampling = SamplingParameters(temperature=request.param)
    static = METHODS["sequoia-match"].plan().shaped(TreeShape.branching((4, 2, 1)))
    plans = [OFF.plan(), CHAIN.plan(depth=1), CHAIN.plan(depth=4), SPECEXEC.plan(8, 4), SPECEXEC.plan(24, 8), static]
    with engine(embedded.TARGET, embedded.DRAFT, LARGEST) as pair:
        prompt = code_prompts(pair, 1, 40)[0]
        lengths: Lengths = {}
        for sizes in (IN_ORDER, ANY_SIZE):
            pair.target.padding = sizes
            for plan in plans:
                lengths[sizes, plan] = [len(tokens) for tokens in written(pair, prompt, sampling, plan)]
        text = [token for tokens in written(pair, prompt, sampling, LARGEST) for token in tokens]
        assert pair.draft is not None
        source = ModelCandidates(pair.draft, Sampler(sampling, pair.target.n_vocab))
        limits = DraftLimits(64, 12, 16, 256)
        trace = record(source, prompt, text, N_WRITTEN - 12, limits, sharpness_at(request.param))
    return request.param, prompt, trace, lengths


@pytest.mark.slow
def test_replays_commit_what_the_engine_commits(
    recorded: tuple[float, list[int], Trace, Lengths],
) -> None:
    temperature, _, trace, lengths = recorded
    calibration = calibrate([trace])
    for (sizes, plan), of_engine in lengths.items():
        prediction = predict(plan, [trace], STREAMED.padded(sizes), [calibration], temperature)
        n_passes = sum(prediction.accepted)
        counts = [of_engine[:n_passes].count(length + 1) for length in range(len(prediction.accepted))]
        assert list(prediction.accepted) == counts, plan


@pytest.mark.slow
def test_the_adaptive_tree_beats_fixed_ones_where_passes_are_free_and_shrinks_where_they_are_not(
    recorded: tuple[float, list[int], Trace, Lengths],
) -> None:
    temperature, _, trace, _ = recorded
    acceptance = Acceptance(temperature, calibrate([trace]), POSITIONAL, 60)
    measured = MeasuredAcceptance(acceptance, [trace])
    for costs, least in ((STREAMED, 0.8), (IN_RAM, 0.8)):
        predictions = ranked(candidates(costs, 64, 64, POSITIONAL), measured, costs, Run())
        best = max(p.tokens_per_second for p in predictions)
        adaptive = next(p for p in predictions if p.plan.method is ADAPTIVE)
        assert adaptive.tokens_per_second > least * best
    assert predictions[0].plan == OFF.plan(), "where a pass over two costs more than twice one over one, nothing pays"
    assert next(p for p in predictions if p.plan.method is ADAPTIVE).tokens_per_pass < 2.0


@pytest.mark.slow
def test_an_unfinished_run_keeps_its_recordings_and_tables(
    recorded: tuple[float, list[int], Trace, Lengths],
) -> None:
    temperature, _, trace, _ = recorded
    calibration = calibrate([trace])
    unfinished = UnfinishedRun("fingerprint", "key")
    assert not unfinished.is_resumed
    acceptance = Acceptance(temperature, calibration, POSITIONAL, 60)
    unfinished.stages = Stages(
        "key", LlamaSettings(tensor_split=(3.0, 1.0)), [TriedSettings("defaults", {1: 2.0}, PLAIN_ONLY, 0.5, 1.5)],
        STREAMED.target, STREAMED.draft, PassSizes(8, 4), Overhead(1.0, 0.5, 0.25),
        [MeasuredAcceptance(acceptance, [trace])],
    )  # fmt: skip
    unfinished.save()
    assert not UnfinishedRun("fingerprint", "another effort").is_resumed
    resumed = UnfinishedRun("fingerprint", "key")
    assert resumed.is_resumed
    stages = resumed.stages
    assert (stages.settings, stages.tried) == (unfinished.stages.settings, unfinished.stages.tried)
    assert (stages.exact_sizes, stages.overhead) == (PassSizes(8, 4), Overhead(1.0, 0.5, 0.25))
    assert stages.target is not None
    assert stages.draft is not None
    assert (stages.target.times, stages.draft.times) == (STREAMED.target.times, STREAMED.draft.times)
    (again,) = stages.acceptance
    assert again.acceptance.positional == POSITIONAL
    for plan in (CHAIN.plan(depth=4), SPECEXEC.plan(24, 8)):
        before = predict(plan, [trace], STREAMED, [calibration], temperature)
        assert predict(plan, again.traces, STREAMED, again.calibrations_of_others(), temperature) == before
    delete("fingerprint")
    assert not UnfinishedRun("fingerprint", "key").is_resumed


def test_a_stage_is_measured_once_and_kept_for_the_next_run() -> None:
    table = CostTable([PassTime(1, 64, 100.0)])
    unfinished = UnfinishedRun("fingerprint", "key")
    assert unfinished.once("target", lambda: table) is table
    assert unfinished.once("target", lambda: pytest.fail("measured again")) is table
    resumed = UnfinishedRun("fingerprint", "key")
    assert resumed.is_resumed
    assert resumed.once("target", lambda: pytest.fail("measured again")).ms(1, 64) == 100.0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"key": "key", "target": 3}'])
def test_a_damaged_file_of_an_unfinished_run_is_passed_over(text: str) -> None:
    file = folder() / "unfinished" / "fingerprint.json"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    unfinished = UnfinishedRun("fingerprint", "key")
    assert not unfinished.is_resumed
    assert unfinished.stages == Stages("key")


@pytest.mark.slow
def test_the_meter_records_every_text_within_its_time_and_knows_our_own_overhead() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(16, 8)) as pair:
        prompts = [("code", prompt) for prompt in code_prompts(pair, 4, 32)]
        meter = AcceptanceMeter(pair, STREAMED, 16, 4)
        greedy, sampled = meter.measure(prompts, [0.0, 0.8], 40, Run().stage(0))
        assert (greedy.acceptance.temperature, sampled.acceptance.temperature) == (0.0, 0.8)
        for measured in (greedy, sampled):
            # With no time left, 24 tokens are written, of which half are left over for the last passes.
            assert [len(trace.positions) for trace in measured.traces] == [12] * 4
            assert measured.acceptance.n_positions == 4 * 12
        assert greedy.acceptance.positional[0] == max(greedy.acceptance.positional)
        assert 0.3 < sum(greedy.acceptance.positional) < 1.001
        assert all(ms > 0 for ms in meter.draft_overhead())


@pytest.mark.slow
def test_predictions_know_their_error_and_compare_plans_by_the_same_texts() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(16, 8)) as pair:
        prompts = [("code", prompt) for prompt in code_prompts(pair, 6, 32)]
        (measured,) = AcceptanceMeter(pair, STREAMED, 16, 8).measure(prompts, [0.0], 40, Run())
    calibrations = measured.calibrations_of_others()
    off, chain, tree = (
        predict(plan, measured.traces, STREAMED, calibrations, 0.0)
        for plan in (OFF.plan(), CHAIN.plan(depth=4), SPECEXEC.plan(16, 8))
    )
    assert off.error < 1e-6 * off.tokens_per_second, "all passes of plain decoding take as long"
    assert 0.01 < tree.error / tree.tokens_per_second < 0.3
    ratio = tree.times.log_ratio(chain.times)
    assert ratio.value == pytest.approx(np.log(tree.tokens_per_second / chain.tokens_per_second))
    apart = np.hypot(tree.times.log_rate.error, chain.times.log_rate.error)
    assert ratio.error < 0.8 * apart, "both find the same texts hard"


def test_few_plans_are_run_and_drafting_ahead_only_where_drafting_takes_long() -> None:
    def predicted(plan: Plan, rate: float, draft_share: float = 0.01) -> Prediction:
        times = BlockTimes(((0.9 * BLOCK / rate, 1.1 * BLOCK / rate), (BLOCK / rate, BLOCK / rate)))
        return Prediction(plan, rate, 3.0, times=times, draft_share=draft_share)

    adaptive, tree, smaller = ADAPTIVE.plan(24, 8, 8), SPECEXEC.plan(16, 8), SPECEXEC.plan(8, 4)
    chain, short, off = CHAIN.plan(depth=4), CHAIN.plan(depth=1), OFF.plan()
    predictions = [predicted(adaptive, 10.0), predicted(tree, 9.9), predicted(smaller, 9.8), predicted(chain, 8.0),
                   predicted(short, 5.0), predicted(off, 4.0)]  # fmt: skip
    chosen = [one.plan for one in worth_running(predictions, 48, 9)]
    assert [plan.method for plan in chosen] == [ADAPTIVE, MERGED, SPECEXEC, CHAIN, OFF]
    assert (chosen[1].budget, chosen[2], chosen[3]) == (48, tree, chain)
    assert [one.plan.method for one in worth_running(predictions, 48, 2)] == [ADAPTIVE, MERGED, OFF]
    slow_draft = [replace(one, draft_share=0.3) for one in predictions]
    ahead = [one.plan for one in worth_running(slow_draft, 48, 9) if one.plan.overlap]
    assert ahead == [replace(chosen[1], overlap=True)]
    far_behind = [predicted(tree, 10.0), predicted(adaptive, 6.0), predicted(chain, 6.0), predicted(off, 4.0)]
    assert [one.plan for one in worth_running(far_behind, 48, 9)] == [tree, off]
