"""What `specrun tune` makes of a target whose passes check one path."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.engine.generation import Generation
from specrun.engine.passes import write_alone
from specrun.engine.request import Request
from specrun.llama.rollback import MOST_PENDING
from specrun.long_run import Run
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import sharpness_at
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.tuning.choose import candidates
from specrun.tuning.pass_timer import DraftTimer, TargetTimer
from specrun.tuning.replay import ANY_TREE, TargetLimits, predict
from specrun.tuning.text_writer import write_together
from specrun.tuning.trace import calibrate, record
from tests.engines import code_prompts, engine
from tests.hybrids import KINDS, noisy, random_recurrent

COSTS = CostModel(
    CostTable([PassTime(1, 64, 100.0), PassTime(16, 64, 120.0), PassTime(64, 64, 200.0)]),
    CostTable([PassTime(1, 64, 5.0), PassTime(16, 64, 6.0)]),
)
CHECKPOINT = TargetLimits(leaves=1, most_pending=MOST_PENDING)
N_WRITTEN = 90
# The first leaves llama.cpp's snapshots where it has them, the second a checkpoint.
DEEPEST = (CHAIN.plan(depth=8), CHAIN.plan(depth=40))


def test_fixed_trees_are_no_candidates() -> None:
    plans = candidates(COSTS, 64, 64, [0.6, 0.1], CHECKPOINT)
    assert {plan.method.name for plan in plans} == {"off", "chain", "adaptive"}
    assert {plan.method.name for plan in plans} < {p.method.name for p in candidates(COSTS, 64, 64, [0.6, 0.1])}


@pytest.mark.slow
@pytest.mark.parametrize("deepest", DEEPEST, ids=str)
def test_a_replay_commits_and_decodes_what_the_engine_does(tmp_path: Path, deepest: object) -> None:
    target = random_recurrent(tmp_path / "target.gguf", "qwen35")
    draft = noisy(tmp_path / "draft.gguf", target)
    sampling = SamplingParameters(temperature=0.8)
    plan = CHAIN.plan(depth=4)
    assert deepest in DEEPEST
    with engine(target, draft, deepest) as e:  # type: ignore[arg-type]
        limits = TargetLimits.of(e.target)
        assert limits == TargetLimits(1, None if e.target.context.n_snapshots else 4)
        prompt = code_prompts(e, 1, 40)[0]
        sizes: list[int] = []
        passes = []
        for one in write_alone(Generation(e, Request(prompt, sampling, N_WRITTEN, ignore_eos=True), FixedPlan(plan))):
            passes.append(len(one.tokens))
            sizes.append(e.target.n_pending)  # in front of the next pass
        text = e.target.tokens[len(prompt) :]
        assert e.draft
        source = ModelCandidates(e.draft, Sampler(sampling, e.target.n_vocab))
        trace = record(source, prompt, text, N_WRITTEN - 12, DraftLimits(24, 8, 8, 1), sharpness_at(0.8))
    found = predict(plan, [trace], COSTS, [calibrate([trace])], 0.8, limits)
    n_passes = sum(found.accepted)
    assert list(found.accepted) == [passes[:n_passes].count(length + 1) for length in range(len(found.accepted))]
    # Waiting tokens make passes longer.
    free = predict(plan, [trace], COSTS, [calibrate([trace])], 0.8, ANY_TREE)
    assert free.accepted == found.accepted
    is_slower = found.tokens_per_second < free.tokens_per_second
    assert is_slower == (limits.most_pending is not None) == (max(sizes) > 0)


@pytest.mark.parametrize("deepest", DEEPEST, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_texts_that_are_written_together_are_those_written_alone(tmp_path: Path, kind: str, deepest: object) -> None:
    target = random_recurrent(tmp_path / "target.gguf", kind)
    with engine(target, target, deepest) as e:  # type: ignore[arg-type]
        prompts = [prompt[: 20 + i] for i, prompt in enumerate(code_prompts(e, 3, 40))]
        together = write_together(e.target, prompts, [0.0, 0.8], 8, 16, Run(), most_groups=8)
        for texts in together.values():
            assert [text.prompt for text in texts] == prompts
            for text in texts:
                e.reset()
                request = Request(text.prompt, text.sampling, 16, ignore_eos=True)
                alone = [
                    token for one in write_alone(Generation(e, request, FixedPlan(OFF.plan()))) for token in one.tokens
                ]
                assert text.written == alone


@pytest.mark.parametrize("kind", KINDS)
def test_passes_are_timed_and_leave_the_caches_as_they_were(tmp_path: Path, kind: str) -> None:
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
