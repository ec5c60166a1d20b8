"""Heads as drafts: what is refused before anything is loaded, what is said, and the memory that is planned for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.errors import LlamaError, ModelFileError, PairError
from specrun.hardware.placement import place
from specrun.llama import HeadDraft
from specrun.llama.heads import hidden_states
from specrun.llama_settings import LlamaSettings
from specrun.loading import loading
from specrun.loading.model import Model
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import EAGLE3, SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.conftest import SpecrunHere
from tests.eagle_heads import random_eagle3
from tests.engines import code_prompts
from tests.hybrids import random_qwen35
from tests.models import random_gemma3
from tests.mtp_targets import random_mtp_step35, trunk_alone

ONE_THREAD = LlamaSettings(threads=1)


def options(draft: Path | None, *plans: Plan, target: Path = embedded.TARGET) -> RunOptions:
    return RunOptions(target, draft, plans, ctx_size=256, settings=ONE_THREAD, draft_settings=ONE_THREAD)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return random_eagle3(tmp_path / "head.gguf")


def test_a_head_is_loaded_where_a_plan_drafts(head: Path) -> None:
    with Model(options(head, EAGLE3.plan(8, 4))) as model:
        assert isinstance(model.engine.draft, HeadDraft)
        assert model.engine.target.states is not None
        assert model.notices == []
    with Model(options(head, OFF.plan())) as model:
        assert model.engine.draft is None
        assert model.engine.target.states is None, "llama.cpp was asked for states that nobody reads"


@pytest.mark.slow
def test_wide_trees_and_long_prompts_go_through_small_passes(head: Path) -> None:
    with Model(options(head, SPECEXEC.plan(128, 4, 100))) as model:
        draft = model.engine.draft
        assert isinstance(draft, HeadDraft)
        assert draft.context.config.n_batch == 100
        prompt = code_prompts(model.engine, 1, 200)[0]
        request = Request(prompt, SamplingParameters(temperature=1.0), 8)
        trees = [
            one.tree for one in write_alone(Generation(model.engine, request, FixedPlan(SPECEXEC.plan(128, 4, 100))))
        ]
        assert max(len(tree) for tree in trees) > 64


def test_a_pair_that_cannot_work_is_refused_before_it_is_loaded(
    tmp_path: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(loading, "LlamaModel", loads)
    gemma = random_gemma3(tmp_path / "gemma.gguf", window=32)
    with pytest.raises(PairError, match="gives no states of the layers of gemma3 models"):
        Model(options(head, CHAIN.plan(), target=gemma))
    with pytest.raises(PairError, match=r"^--method eagle3 needs an EAGLE-3 head as --draft, and draft\.gguf is none"):
        Model(options(embedded.DRAFT, EAGLE3.plan()))


def test_a_head_writes_nothing(head: Path) -> None:
    with pytest.raises(ModelFileError, match="is an EAGLE-3 head, which writes nothing by itself; give it as --draft"):
        Model(options(None, OFF.plan(), target=head))


def test_what_this_build_lacks_is_said_in_one_line(head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hidden_states._SIGNATURES, "llama_not_there", ("v", [], None))
    hidden_states.functions.cache_clear()
    try:
        with pytest.raises(
            LlamaError, match=r"^this llama\.cpp cannot run trained heads, as it lacks llama_not_there;"
        ):
            Model(options(head, CHAIN.plan()))
    finally:
        hidden_states.functions.cache_clear()


@pytest.mark.slow
def test_a_hybrid_target_checks_the_best_path_of_a_head(tmp_path: Path) -> None:
    target = random_qwen35(tmp_path / "target.gguf")
    head = random_eagle3(tmp_path / "hybrid-head.gguf", target)
    written = []
    for plan in (OFF.plan(), CHAIN.plan(depth=3), SPECEXEC.plan(16, 4)):
        with Model(options(head, plan, target=target)) as model:
            prompt = code_prompts(model.engine, 1, 40)[0]
            request = Request(prompt, SamplingParameters(temperature=0.8), 30)
            passes = list(write_alone(Generation(model.engine, request, FixedPlan(model.plans.candidates[0]))))
            written.append([token for one in passes for token in one.tokens])
            assert plan is OFF.plan() or all(one.tree.n_leaves == 1 for one in passes)
    assert written[1] == written[2] == written[0]


def test_the_memory_of_states_is_planned(head: Path) -> None:
    with_head = plan_load(options(head, CHAIN.plan())).placement.request
    file, n_ctx = GgufFile.read(head), 256
    assert with_head.states_bytes > 4 * file.n_embd * (n_ctx + 3 * 512)
    assert place(with_head).ram.parts["draft"] > file.n_bytes - file.output_bytes + with_head.states_bytes
    assert plan_load(options(embedded.DRAFT, CHAIN.plan())).placement.request.states_bytes == 0


@pytest.mark.slow
def test_the_commands_take_a_head(here: SpecrunHere, head: Path) -> None:
    arguments = ("generate", "def f(x):", "-n", "16", "--temp", "0", "-m", embedded.TARGET, "-md", head)
    plain = here(*arguments, "--speculate", "off")
    for more in (["--method", "eagle3"], ["--speculate", "chain"], ["--speculate", "tree"], []):
        result = here(*arguments, *more)
        assert (result.code, result.stdout) == (0, plain.stdout)


@pytest.mark.slow
def test_the_commands_take_mtp_layers(here: SpecrunHere, tmp_path: Path) -> None:
    target = random_mtp_step35(tmp_path / "target.gguf")
    arguments = ("generate", "def f(x):", "--raw", "-n", "16", "--temp", "0", "-m", target)
    plain = here(*arguments, "--speculate", "off")
    assert plain.code == 0
    for more in (["--method", "mtp"], ["--draft", "mtp", "--speculate", "chain"], ["--draft", target], []):
        result = here(*arguments, *more)
        assert (result.code, result.stdout) == (0, plain.stdout)
    trunk = trunk_alone(tmp_path / "trunk.gguf", target)
    result = here("generate", "x", "--raw", "-m", trunk, "--method", "mtp")
    result.assert_fails(PairError.exit_code, "trunk.gguf has no MTP layers")


def test_mtp_layers_take_no_memory_of_a_draft(tmp_path: Path) -> None:
    target = random_mtp_step35(tmp_path / "target.gguf")
    own = plan_load(options(target, CHAIN.plan(), target=target)).placement.request
    assert own.draft is None
    assert own.states_bytes > 0
    assert own.target == plan_load(options(None, OFF.plan(), target=target)).placement.request.target
