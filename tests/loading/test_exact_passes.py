"""`--exact`: every pass is padded to sizes that give a token the same bits, whatever the type of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.llama import TargetContext
from specrun.llama.context import Logits
from specrun.llama.invariance import Survey
from specrun.llama_settings import LlamaSettings
from specrun.loading import exact_passes
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes
from specrun.speculation.registry import METHODS
from specrun.speculation.tree import TokenTree, TreeShape
from tests.engines import Written, change_scores, code_prompts, engine, first_difference, write
from tests.hybrids import noisy
from tests.models import light_draft, random_llama, wide_target

ONE_THREAD = LlamaSettings(threads=1)
LARGEST = 6
PLANS = [
    CHAIN.plan(depth=8), SPECEXEC.plan(16, 8), METHODS["merged"].plan(32), METHODS["draftless"].plan(32),
    METHODS["sequoia"].plan().shaped(TreeShape.branching((3, 2, 1, 1))),
]  # fmt: skip


# Rules that draw write plain decoding's text only greedily; for all others sampling is the harder case.
RUNS = [*((plan, 0.8) for plan in PLANS), (PLANS[-1], 0.0)]


@pytest.fixture(scope="module")
def bounded() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, METHODS["merged"].plan(32)) as e:
        e.target.padding = PassSizes(1, 1, LARGEST)
        yield e


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "temperature"), RUNS, ids=str)
def test_pending_tokens_and_the_tree_together_are_within_the_bound(
    bounded: Engine, plan: Plan, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Twice the same lines, so that long runs are copied and many tokens accepted at once.
    prompt = code_prompts(bounded, 1, 60)[0] * 2
    sampling = SamplingParameters(temperature=temperature, seed=3)
    sizes = []

    def counted(target: TargetContext, tree: TokenTree, rows: Logits) -> Logits:
        sizes.append(target.n_pending + len(tree))
        return rows

    change_scores(monkeypatch, counted)
    tokens = write(bounded, prompt, sampling, plan, 64).tokens
    assert len(sizes) < len(tokens), "something was accepted"
    assert 2 <= max(sizes) <= LARGEST
    if temperature == 0 or not plan.method.samples:
        assert tokens == write(bounded, prompt, sampling, OFF.plan(), 64).tokens


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "temperature"), [*RUNS, (CHAIN.plan(depth=4), 0.8)], ids=str)
def test_where_only_consecutive_cells_are_exact_nothing_else_decides(
    bounded: Engine, plan: Plan, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: a token after a rejected branch gets other last bits, here entirely other logits."""
    monkeypatch.setattr(bounded.target, "padding", PassSizes(16, 16, 16, in_order=True))
    prompt = code_prompts(bounded, 1, 60)[0] * 2
    sampling = SamplingParameters(temperature=temperature, seed=3)

    def bent(_target: TargetContext, tree: TokenTree, rows: Logits) -> Logits:
        rows[tree.depths != np.arange(len(tree))] = 0.0
        return rows

    change_scores(monkeypatch, bent)
    written = write(bounded, prompt, sampling, plan, 48)
    plain = write(bounded, prompt, sampling, OFF.plan(), 48)
    assert written.n_passes < plain.n_passes, "something was accepted"
    if temperature == 0 or not plan.method.samples:
        assert first_difference(written, plain) is None


@pytest.mark.slow
def test_it_holds_where_the_kernel_changes_with_the_length_of_the_text(made: Path) -> None:
    """Of two f16 caches llama.cpp reads fewer than 512 cells with one kernel, and more with others."""
    # One thread would always take the same kernel. Two on one core, as a test process has it, are slow: a small model.
    target = random_llama(made / "long-context.gguf", n_ctx=2048)
    draft = noisy(made / "draft-with-long-context.gguf", target)
    f16 = LlamaSettings(threads=2, type_k="f16", type_v="f16")
    options = RunOptions(
        target, draft, (SPECEXEC.plan(16, 8),), ctx_size=1024, settings=f16, draft_settings=ONE_THREAD, exact=True
    )
    with Model(options) as loaded:
        prompt = code_prompts(loaded.engine, 1, 700)[0]
        sampling = SamplingParameters(temperature=0.8, seed=1)
        off = write(loaded.engine, prompt, sampling, OFF.plan(), 48)
        for plan in (loaded.plans.candidates[0], CHAIN.plan(depth=1)):
            assert write(loaded.engine, prompt, sampling, plan, 48).rows == off.rows


# The class of each type on x86 with AVX2, with and without re-ordered weights: llama.cpp's tiled kernels for K- and
# i-quants begin at 8 tokens, and re-ordered weights are multiplied with four rows at a time.
TYPES = [
    ("q4_k_m", False, PassSizes(8)), ("q4_k_m", True, PassSizes(8, 4)), ("q3_k_m", True, PassSizes(8, 4)),
    ("q4_0", True, PassSizes(8)), ("q5_k_m", False, PassSizes(8)), ("q6_k", False, PassSizes(8)),
    ("iq4_nl", False, PassSizes(8)), ("iq4_xs", False, PassSizes(8)), ("f16", False, PassSizes(2)),
    ("bf16", False, PassSizes(2)), ("mxfp4", False, ANY_SIZE), ("q8_0", True, ANY_SIZE),
]  # fmt: skip
TREE = SPECEXEC.plan(64, 12)
ROOMY = SPECEXEC.plan(128, 12)  # contexts for it have room for TREE and its padding


def two_turns(engine: Engine, prompt: list[int], more: list[int], sampling: SamplingParameters, plan: Plan) -> Written:
    """A text and its continuation after further text, as in a chat, with one cache."""
    engine.reset()
    first = write(engine, prompt, sampling, plan, 40)
    second = write(engine, [*prompt, *first.tokens, *more], sampling, plan, 40)
    n_passes = first.n_passes + second.n_passes
    return Written(first.tokens + second.tokens, first.rows + second.rows, second.finish, n_passes, second.statistics)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "repack", "sizes"), TYPES, ids=lambda value: str(value))
def test_trees_write_what_plain_decoding_writes_bit_for_bit(
    kind: str, repack: bool, sizes: PassSizes, made: Path
) -> None:
    with engine(wide_target(made, kind), light_draft(made), ROOMY, repack=repack) as e:
        e.target.padding = sizes
        prompt, more = code_prompts(e, 2, 480)
        sampling = SamplingParameters(temperature=0.8, seed=1)
        plain, *texts = (
            two_turns(e, prompt, more[:30], sampling, plan) for plan in (OFF.plan(), TREE, CHAIN.plan(depth=5))
        )
        for text in texts:
            assert first_difference(text, plain) is None
            assert text.n_passes < plain.n_passes, "something was accepted"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q4_k_m", "f16"])
def test_without_padding_the_bits_differ(kind: str, made: Path) -> None:
    """Otherwise the test above would show nothing."""
    with engine(wide_target(made, kind), embedded.DRAFT, ROOMY) as e:
        prompt = code_prompts(e, 1, 480)[0]
        plain, tree = (two_turns(e, prompt, [], SamplingParameters(seed=1), plan) for plan in (OFF.plan(), TREE))
        assert plain.rows != tree.rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q4_k_m", "f16", "q8_0"])
def test_the_class_that_is_measured_at_load_is_exact_and_kept(
    kind: str, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for plan in (OFF.plan(), TREE):
        options = RunOptions(
            wide_target(made, kind), embedded.DRAFT, (plan,), ctx_size=1024, settings=ONE_THREAD,
            draft_settings=ONE_THREAD, exact=True,
        )  # fmt: skip
        with Model(options) as loaded:
            assert loaded.exactness.is_exact
            assert bool(loaded.notices) == (loaded.exactness.sizes != ANY_SIZE)
            prompt, more = code_prompts(loaded.engine, 2, 480)
            sampling = SamplingParameters(temperature=0.8, seed=2)
            written.append((loaded.exactness, two_turns(loaded.engine, prompt, more[:30], sampling, plan)))
        monkeypatch.delattr(exact_passes, "exact_sizes", raising=False)  # the second run does not measure
    assert written[0][0] == written[1][0]
    assert first_difference(written[1][1], written[0][1]) is None


@pytest.mark.parametrize(
    ("sizes", "notice"),
    [
        (PLAIN_ONLY, "speculation is off"),
        (PassSizes(1, 1, 5), "1 to 5 tokens"),
        (PassSizes(8, 4), "8 or more tokens in multiples of 4; a plain pass takes 50% longer"),
        (PassSizes(8, 8, 8, in_order=True), "8 tokens, and only the first path of a tree is exact; a plain pass"),
        (ANY_SIZE, ""),
    ],
    ids=str,
)
def test_a_notice_says_what_exactness_costs(sizes: PassSizes, notice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = Survey((), {1: 2.0, 5: 2.5, 8: 3.0})
    monkeypatch.setattr(exact_passes, "exact_sizes", lambda *_: (sizes, survey))
    plans = (SPECEXEC.plan(16, 8), OFF.plan())
    options = RunOptions(
        embedded.TARGET, embedded.DRAFT, plans, ctx_size=256, settings=ONE_THREAD, draft_settings=ONE_THREAD, exact=True
    )
    with Model(options) as loaded:
        said = [text for text in loaded.notices if "--exact" in text]
        assert len(said) == bool(notice)
        assert all(notice in text for text in said)
        assert loaded.plans.candidates == ((OFF.plan(),) if sizes == PLAIN_ONLY else plans)
        assert loaded.engine.target.padding == sizes
