"""With a trained head as the draft, the text is the one without, to the last bit, whatever grows the trees."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.llama import AnyHead, HeadDraft
from specrun.llama_settings import LlamaSettings
from specrun.loading import residency
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.sequoia import SEQUOIA_MATCH
from specrun.speculation.drafters.specexec import DFLASH, EAGLE3, MTP, SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.tree import TreeShape
from tests.dflash_heads import dflash2_pair, random_dflash, random_dspark
from tests.eagle_heads import agreeing_pair, random_eagle3
from tests.engines import Written, code_prompts, engine, first_difference, write
from tests.gemma4 import random_assistant, random_gemma4
from tests.hybrids import random_qwen35, random_qwen35_moe
from tests.models import random_llama
from tests.mtp_targets import head_alone, quiet, random_mtp_glm4_moe, random_mtp_qwen35, random_mtp_step35, trunk_alone
from tests.streams import planned

GREEDY = SamplingParameters(temperature=0.0)
SAMPLED = SamplingParameters(temperature=0.8)
LARGEST = SPECEXEC.plan(64, 8)
PLANS = [
    CHAIN.plan(depth=4),
    LARGEST,
    ADAPTIVE.plan(32, 8, 8),
    MERGED.plan(32, 16),
    SEQUOIA_MATCH.plan().shaped(TreeShape.branching((3, 2, 1))),
]
N_TOKENS = 60

KINDS = ["eagle3", "mtp", "dspark", "dflash2", "assistant"]

Pair = tuple[Path, Path]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    if request.param == "eagle3":
        return agreeing_pair(folder)
    if request.param == "dspark":
        target = quiet(folder / "target.gguf", random_llama(folder / "plain.gguf", n_layer=8))
        return target, random_dspark(folder / "head.gguf", target)
    if request.param == "dflash2":
        return dflash2_pair(folder)
    if request.param == "assistant":
        target = random_gemma4(folder / "target.gguf")
        return target, random_assistant(folder / "head.gguf", target)
    target = random_mtp_step35(folder / "target.gguf")
    return target, target


@pytest.fixture(scope="module")
def running(pair: Pair) -> Iterator[Engine]:
    with engine(*pair, LARGEST) as e:
        assert isinstance(e.draft, AnyHead)
        yield e


def written(e: Engine, plan: Plan, sampling: SamplingParameters, n_tokens: int = N_TOKENS) -> list[Written]:
    results = []
    for i, prompt in enumerate(code_prompts(e, 2, 40)):
        e.reset()
        results.append(write(e, prompt, replace(sampling, seed=i), plan, n_tokens))
    return results


def assert_same(results: list[Written], plain: list[Written]) -> None:
    for result, reference in zip(results, plain, strict=True):
        assert first_difference(result, reference) is None


def share_of_passes(target: Path, head: Path, kind: Any) -> float:
    """The largest share of plain decoding's passes that a chain and a tree take, which must write the same.

    kind: of the draft, as `isinstance` takes it.
    """
    with engine(target, None, OFF.plan()) as e:
        plain = written(e, OFF.plan(), SAMPLED)
    shares = []
    for plan in (CHAIN.plan(depth=3), SPECEXEC.plan(16, 4)):
        with engine(target, head, plan) as e:
            assert isinstance(e.draft, kind)
            results = written(e, plan, SAMPLED)
        assert_same(results, plain)
        shares.append(sum(result.n_passes for result in results) / sum(result.n_passes for result in plain))
    return max(shares)


@pytest.mark.slow
def test_every_kind_of_plan_writes_the_same(running: Engine, pair: Pair) -> None:
    with engine(pair[0], None, OFF.plan()) as e:  # without a head, the target is not even asked for states
        plain = written(e, OFF.plan(), SAMPLED)
    assert_same(written(running, OFF.plan(), SAMPLED), plain)
    for plan in PLANS:
        results = written(running, plan, SAMPLED)
        assert_same(results, plain)
        n_passes = sum(result.n_passes for result in results)
        assert n_passes < 0.85 * sum(result.n_passes for result in plain), f"{plan}: little was accepted"


@pytest.mark.slow
def test_the_methods_by_name_write_the_same(running: Engine) -> None:
    method = {"eagle3": EAGLE3, "mtp": MTP, "dflash": DFLASH}[running.draft.kind]  # type: ignore[union-attr]
    plain = written(running, OFF.plan(), SAMPLED, 24)
    assert_same(written(running, method.plan(16, 6), SAMPLED, 24), plain)


@pytest.mark.slow
def test_the_time_in_the_head_is_counted(running: Engine) -> None:
    for plan in (CHAIN.plan(depth=4), LARGEST):
        for result in written(running, plan, GREEDY, 24):
            assert result.statistics.draft_seconds > 0
    assert all(result.statistics.draft_seconds == 0 for result in written(running, OFF.plan(), GREEDY, 24))


@pytest.mark.slow
def test_a_tree_commits_more_than_a_chain(running: Engine) -> None:
    chain, tree = (sum(r.n_passes for r in written(running, plan, SAMPLED)) for plan in PLANS[:2])
    assert tree < chain


@pytest.mark.slow
def test_a_head_that_is_nearly_always_wrong_changes_nothing(tmp_path: Path) -> None:
    with engine(embedded.TARGET, random_eagle3(tmp_path / "head.gguf"), LARGEST) as e:
        plain = written(e, OFF.plan(), SAMPLED, 24)
        for plan in PLANS[:2]:
            assert_same(written(e, plan, SAMPLED, 24), plain)


@pytest.mark.slow
def test_the_second_turn_is_the_same(running: Engine) -> None:
    prompt, more, _ = code_prompts(running, 3, 40)

    def turns(plan: Plan) -> list[Written]:
        running.reset()
        first = write(running, prompt, SAMPLED, plan, N_TOKENS)
        # The answer goes on; then another one is asked for, which shares the beginning only.
        second = write(running, [*prompt, *first.tokens, *more], SAMPLED, plan, N_TOKENS)
        again = write(running, [*prompt, *first.tokens[:10], *more], SAMPLED, plan, N_TOKENS)
        return [first, second, again]

    plain = turns(OFF.plan())
    for plan in (CHAIN.plan(depth=4), LARGEST, MERGED.plan(32, 16)):
        assert_same(turns(plan), plain)


@pytest.mark.slow
def test_the_head_comes_back_after_passes_without_it(running: Engine) -> None:
    prompt = code_prompts(running, 1, 40)[0]
    running.reset()
    plain = write(running, prompt, GREEDY, OFF.plan(), 2 * N_TOKENS)
    running.reset()
    first = write(running, prompt, GREEDY, OFF.plan(), N_TOKENS)
    rest = write(running, [*prompt, *first.tokens], GREEDY, LARGEST, N_TOKENS)
    assert [*first.tokens, *rest.tokens] == plain.tokens
    assert rest.n_passes < 0.85 * N_TOKENS


@pytest.mark.slow
def test_passes_that_are_padded_have_the_same_states(pair: Pair) -> None:
    results = []
    for sizes in (ANY_SIZE, PassSizes(least=8, multiple=4)):
        with engine(*pair, LARGEST) as e:
            e.target.padding = sizes
            results.append(written(e, CHAIN.plan(depth=3), SAMPLED, 30))
    assert_same(results[1], results[0])
    assert [one.n_passes for one in results[1]] == [one.n_passes for one in results[0]], "other states were read"


@pytest.mark.slow
def test_exact_runs_are_the_same(pair: Pair) -> None:
    results = []
    for plan in (OFF.plan(), SPECEXEC.plan(16, 6)):
        settings = LlamaSettings(threads=1)
        options = RunOptions(*pair, (plan,), ctx_size=512, settings=settings, draft_settings=settings, exact=True)
        with Model(options) as model:
            results.append(written(model.engine, plan, SAMPLED, 30))
    assert_same(results[1], results[0])


@pytest.mark.slow
@pytest.mark.parametrize("is_beside", [False, True], ids=["inside", "beside"])
@pytest.mark.parametrize("make", [random_mtp_qwen35, random_mtp_glm4_moe])
def test_mtp_layers_of_hybrids_and_mixtures(tmp_path: Path, make: Callable[[Path], Path], is_beside: bool) -> None:
    target = head = make(tmp_path / "whole.gguf")
    if is_beside:
        target, head = trunk_alone(tmp_path / "trunk.gguf", target), head_alone(tmp_path / "mtp.gguf", target)
    assert share_of_passes(target, head, HeadDraft) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dspark", "dflash", "eagle3"])
@pytest.mark.parametrize("make", [random_qwen35, random_qwen35_moe])
def test_heads_for_models_with_m_rope(tmp_path: Path, make: Callable[[Path], Path], kind: str) -> None:
    target = quiet(tmp_path / "target.gguf", make(tmp_path / "plain.gguf"))
    if kind == "dspark":
        head = random_dspark(tmp_path / "head.gguf", target, has_sections=True)
    elif kind == "dflash":
        head = random_dflash(tmp_path / "head.gguf", target, has_sections=True)
    else:
        head = random_eagle3(tmp_path / "head.gguf", target)
    share = share_of_passes(target, head, AnyHead)
    assert kind != "dspark" or share < 0.85


def test_of_several_mtp_layers_the_first_drafts_every_level(tmp_path: Path) -> None:
    target = random_mtp_step35(tmp_path / "target.gguf", n_heads=3)
    with engine(target, target, CHAIN.plan(depth=5)) as e:
        plain = written(e, OFF.plan(), GREEDY)
        assert_same(written(e, CHAIN.plan(depth=5), GREEDY), plain)


@pytest.mark.slow
@pytest.mark.skipif(os.uname().sysname != "Linux", reason="weights are streamed on Linux only")
@pytest.mark.parametrize("kind", ["eagle3", "mtp of a mixture", "assistant"])
def test_weights_that_are_streamed_draft_the_same(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "mtp of a mixture":
        target = head = random_mtp_glm4_moe(tmp_path / "target.gguf")
        room = 10**9  # for all but the experts, which are read when they are chosen
    else:
        if kind == "eagle3":
            target, head = agreeing_pair(tmp_path, n_layer=9)
        else:
            target = random_gemma4(tmp_path / "target.gguf", n_layer=10)
            head = random_assistant(tmp_path / "head.gguf", target)
        plan = planned(target, 3).plan
        room = plan.resident_bytes + plan.n_slots * plan.slot_bytes
    with engine(target, head, LARGEST) as e:
        in_ram = written(e, LARGEST, SAMPLED)
    monkeypatch.setattr(residency, "room_in_ram", lambda *_: room)
    with engine(target, head, LARGEST) as e:
        assert e.target.context.weights is not None
        streamed = written(e, LARGEST, SAMPLED)
    assert_same(streamed, in_ram)
    # Were a layer that drafts not in memory, its drafts would be others.
    assert [one.n_passes for one in streamed] == [one.n_passes for one in in_ram]
    # Experts are read where they are not in the page cache already.
    assert kind == "mtp of a mixture" or all(one.statistics.bytes_read > 0 for one in streamed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_a_hybrid_whose_prompt_ends_in_the_first_pass(tmp_path: Path, kind: str) -> None:
    # Padding is not taken back from recurrent states, so a prompt's last tokens wait for a pass of a whole class.
    target = head = random_mtp_qwen35(tmp_path / "target.gguf")
    if kind == "eagle3":
        head = random_eagle3(tmp_path / "head.gguf", target, layers=[0, 1, 1])
    plan = CHAIN.plan(depth=3)
    with engine(target, head, plan, exact=True) as e:
        assert e.draft
        e.target.padding = PassSizes(least=8, multiple=4)
        results = []
        for chosen in (OFF.plan(), plan):
            e.reset()
            prompt = code_prompts(e, 1, 43)[0]
            e.target.set_prompt(prompt)
            assert not e.target.has_states
            e.reset()
            results.append(write(e, prompt, SAMPLED, chosen, 40))
        e.read_for_draft(prompt)
        assert np.isfinite(e.draft.start(prompt)).any()
    assert_same(results[1:], results[:1])
    assert kind == "eagle3" or results[1].n_passes < 0.9 * results[0].n_passes
