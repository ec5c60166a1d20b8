"""What `specrun tune` measures of a head: its passes, and what the target accepts of it along texts it wrote before."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.engine.growth_maps import PositionalMeter
from specrun.llama import HeadDraft
from specrun.long_run import Run
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.tuning.acceptance_meter import AcceptanceMeter
from specrun.tuning.pass_timer import DraftTimer
from tests.dflash_heads import dflash2_pair, random_dspark
from tests.eagle_heads import agreeing_pair, random_eagle3
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
def test_acceptance_is_measured_along_texts_that_the_target_wrote(pair: tuple[Path, Path]) -> None:
    with engine(*pair, SPECEXEC.plan(16, 8)) as e:
        prompts = [("code", prompt) for prompt in code_prompts(e, 2, 40)]
        for one in AcceptanceMeter(e, COSTS, 16, 4).measure(prompts, [0.0, 0.8], 20, Run()):
            assert one.acceptance.positional[0] > 0.2
            ranks = [p.matched_rank(()) for trace in one.traces for p in trace.positions]
            assert sum(rank == 0 for rank in ranks) > 0.2 * len(ranks)


@pytest.mark.slow
def test_what_is_recorded_is_what_is_drafted(tmp_path: Path) -> None:
    # Random weights draft other tokens from the states of another text.
    greedy = SamplingParameters(temperature=0.0)
    with engine(embedded.TARGET, random_eagle3(tmp_path / "head.gguf"), SPECEXEC.plan(8, 4)) as e:
        assert isinstance(e.draft, HeadDraft)
        prompt = code_prompts(e, 1, 40)[0]
        measured = AcceptanceMeter(e, COSTS, 8, 4).measure([("code", prompt)], [0.0], 20, Run())
        for position in measured[0].traces[0].positions:
            text = [*prompt, *measured[0].traces[0].positions[0].continuation][: position.ctx]
            e.target.set_prompt(text)
            row = e.draft.start(text)
            candidates = Sampler(greedy, e.target.n_vocab).candidates(row, len(text), (), 4)
            assert position.children[()].tokens[:4].tolist() == candidates.tokens.tolist()


@pytest.mark.slow
def test_texts_from_elsewhere_are_measured(pair: tuple[Path, Path]) -> None:
    with engine(*pair, SPECEXEC.plan(16, 8)) as e:
        meter = PositionalMeter(e, SamplingParameters(temperature=0.8))
        for prompt in code_prompts(e, 2, 100):
            meter.add(prompt, skip=8)
        assert meter.n_positions == 2 * 92
        assert meter.vector()[0] > 0.2


def test_passes_of_a_head_are_timed(pair: tuple[Path, Path]) -> None:
    with engine(*pair, SPECEXEC.plan(32, 8)) as e:
        timer = DraftTimer(e, code_prompts(e, 1, 50)[0])
        for ctx in (16, 200):
            timer.fill(ctx)
            assert all(timer.ms(n) > 0 for n in (1, 8, 32))
