"""What `specrun tune` measures of a head: its passes, and what the target accepts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.decoding.tree_shapes import PositionalMeter
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import RunCosts
from specrun.tuning.learning_texts import learn
from specrun.tuning.pass_timer import DraftTimer
from tests.dflash_heads import dflash2_pair, random_dspark
from tests.eagle_heads import agreeing_pair
from tests.engines import code_prompts, engine
from tests.gemma4 import random_assistant, random_gemma4
from tests.models import random_llama
from tests.mtp_targets import quiet, random_mtp_step35

KINDS = ["eagle3", "mtp", "dspark", "dflash2", "assistant"]
COSTS = CostModel(
    CostTable([PassTime(1, 64, 100.0), PassTime(16, 64, 120.0), PassTime(64, 64, 200.0)]),
    CostTable([PassTime(1, 64, 1.0), PassTime(16, 64, 2.0)]),
)


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A target, and a head that drafts much of what it writes."""
    if request.param == "eagle3":
        return agreeing_pair(tmp_path)
    if request.param == "mtp":
        target = random_mtp_step35(tmp_path / "target.gguf")
        return target, target
    if request.param == "dflash2":
        return dflash2_pair(tmp_path)
    if request.param == "assistant":
        target = random_gemma4(tmp_path / "target.gguf")
        return target, random_assistant(tmp_path / "head.gguf", target)
    target = quiet(tmp_path / "target.gguf", random_llama(tmp_path / "plain.gguf", n_layer=8))
    return target, random_dspark(tmp_path / "head.gguf", target)


@pytest.mark.slow
def test_texts_are_written_with_it_and_tell_how_often_it_is_right(pair: tuple[Path, Path]) -> None:
    one = LlamaSettings(threads=1)
    plan = MERGED.plan(16, 8)
    with Model(RunOptions(*pair, (plan,), ctx_size=512, settings=one, draft_settings=one)) as model:
        prompts = [("code", prompt) for prompt in code_prompts(model.engine, 2, 40)]
        costs = RunCosts.of(COSTS)
        found = learn(model, plan, costs, (0.0, 0.8), prompts, 24, Run())
        for tuned, acceptance in zip(found.plans, found.acceptance, strict=True):
            assert acceptance.calibration.agreement > 0.2
            # Whether drafts pay depends on what passes take.
            assert (tuned.predicted_tokens_per_pass > 1) == tuned.plan.drafts
            assert acceptance.calibration.n_counted > 0


@pytest.mark.slow
def test_texts_from_elsewhere_are_measured(pair: tuple[Path, Path]) -> None:
    with engine(*pair, SPECEXEC.plan(16, 8)) as e:
        meter = PositionalMeter(e, SamplingParameters(temperature=0.8))
        for prompt in code_prompts(e, 2, 100):
            meter.add(prompt, skip=8)
        assert meter.n_positions == 2 * 92
        assert meter.vector()[0] > 0.2


@pytest.mark.slow
def test_passes_of_a_head_are_timed(pair: tuple[Path, Path]) -> None:
    with engine(*pair, SPECEXEC.plan(32, 8)) as e:
        timer = DraftTimer(e, code_prompts(e, 1, 50)[0])
        for ctx in (16, 200):
            timer.fill(ctx)
            assert all(timer.ms(n) > 0 for n in (1, 8, 32))
