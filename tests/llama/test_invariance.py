"""Classes of sizes are found as they are: all sizes with the kernel that specrun chooses, and others as others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.llama import devices
from specrun.llama.context import Logits
from specrun.llama.invariance import Comparison, Survey, classes_of, exact_sizes, holds, large_sizes
from specrun.llama_settings import LlamaSettings
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes
from specrun.speculation.tree import TokenTree
from tests.engines import code_prompts, engine
from tests.hybrids import KINDS, random_qwen35, random_recurrent
from tests.models import wide_target

PLAN = SPECEXEC.plan(64, 8)


@pytest.fixture(scope="module")
def alone() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, PLAN) as e:
        yield e


@pytest.fixture(scope="module")
def text(alone: Engine) -> list[int]:
    return code_prompts(alone, 1, 200)[0]


@pytest.mark.slow
def test_the_default_settings_are_exact_for_every_size(alone: Engine, text: list[int]) -> None:
    sizes, survey = exact_sizes(alone.target, text, 64)
    assert sizes == ANY_SIZE
    assert len(survey.groups) == 1
    assert alone.target.tokens == [], "the cache is empty again"
    assert alone.target.padding == ANY_SIZE


@pytest.mark.slow
def test_rows_that_change_with_the_size_or_with_the_place_in_a_pass_are_noticed(
    alone: Engine, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, score = alone.target, alone.target.score

    def bent(tree: TokenTree) -> Logits:
        rows = score(tree)
        n = target.pass_size(tree)
        if n >= 8:
            rows += 1.0
        if n == 12:
            rows[-1, 5] += 1.0
        return rows

    monkeypatch.setattr(target, "score", bent)
    comparison = Comparison(target, text, 64, quick=True)
    groups = comparison.survey().groups
    assert [set(group) for group in groups] == [{1, 2, 3, 4, 7}, {8, 9, 10, 11, 13, 14, 16, 32, 64}, {12}]
    assert comparison.holds(PassSizes(1, 1, 7))
    assert comparison.holds(PassSizes(16, 16))
    assert not comparison.holds(ANY_SIZE)


@pytest.mark.slow
def test_tokens_at_the_boundary_that_was_asked_for_are_compared(
    alone: Engine, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, score = alone.target, alone.target.score

    def bent(tree: TokenTree) -> Logits:
        rows = score(tree)
        if len(target.tokens) > 500 and target.pass_size(tree) >= 8:
            rows += 1.0
        return rows

    monkeypatch.setattr(target, "score", bent)
    assert len(exact_sizes(target, text, 64, True, boundary=256)[1].groups) == 1
    assert len(exact_sizes(target, text, 64, True)[1].groups) == 2


@pytest.mark.slow
def test_rows_that_change_behind_a_rejected_branch_are_exact_in_consecutive_cells_only(
    alone: Engine, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on GPUs, which add up attention in groups of cells; there every size is a class of its own besides."""
    target, score = alone.target, alone.target.score

    def bent(tree: TokenTree) -> Logits:
        rows = score(tree)
        rows[tree.depths != np.arange(len(tree))] += 1.0
        rows += target.pass_size(tree)
        return rows

    monkeypatch.setattr(target, "score", bent)
    comparison = Comparison(target, text, 64, quick=True)
    assert not comparison.holds(PassSizes.only(16))
    assert comparison.holds(PassSizes(16, 16, 16, in_order=True))
    # In passes of two tokens there is no branch, so that which class is the fastest decides otherwise.
    monkeypatch.setattr(Survey, "classes", [PassSizes.only(16), PassSizes.only(2)])
    assert exact_sizes(target, text, 64, quick=True)[0] == PassSizes(16, 16, 16, in_order=True)


@pytest.mark.slow
def test_where_no_class_holds_only_plain_decoding_is_left(
    alone: Engine, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comparison, "holds", lambda *_: False)
    assert exact_sizes(alone.target, text, 64)[0] == PLAIN_ONLY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "repack", "groups"),
    [
        ("q4_k_m", False, {(1, 2, 3, 4, 7), (8, 9, 10, 11, 12, 13, 14, 16, 32, 64)}),
        pytest.param("q4_k_m", True, {(1, 2, 3)}, marks=pytest.mark.reordered),
        ("f16", False, {(1,), (2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 16, 32, 64)}),
    ],
)
def test_kernels_of_llama_cpp_have_classes(
    kind: str, repack: bool, groups: set[tuple[int, ...]], text: list[int], made: Path
) -> None:
    """The groups are those of x86 with AVX2; other processors, and AMX for re-ordered weights, have others, which must
    hold as well.
    """
    with engine(wide_target(made, kind), embedded.DRAFT, PLAN, repack=repack) as e:
        comparison = Comparison(e.target, text, 64, quick=True)
        survey = comparison.survey()
        info = devices.system_info()
        if "AVX2 = 1" in info and not (repack and "AMX_INT8 = 1" in info):
            assert groups <= set(survey.groups)
        best = next(sizes for sizes in survey.classes if sizes != PLAIN_ONLY)
        assert comparison.holds(best)
        assert not comparison.holds(ANY_SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [8, 40], ids=["snapshots", "checkpoint"])
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_states_are_compared_along_chains(tmp_path: Path, kind: str, depth: int) -> None:
    plan = CHAIN.plan(depth=depth)
    with engine(random_recurrent(tmp_path / "model.gguf", kind), None, DRAFTLESS.plan(depth + 1)) as e:
        text = code_prompts(e, 1, 200)[0]
        sizes, survey = exact_sizes(e.target, text, plan.budget)
        assert sizes == ANY_SIZE
        assert len(survey.groups) == 1
        assert max(survey.groups[0]) == depth + 1, "as many as the context was made for"
        assert e.target.tokens == []


@pytest.mark.slow
def test_a_state_with_other_bits_is_found_though_the_logits_are_the_same(tmp_path: Path) -> None:
    with engine(random_qwen35(tmp_path / "model.gguf", n_embd=128, float_gates=True), None, DRAFTLESS.plan(41)) as e:
        comparison = Comparison(e.target, code_prompts(e, 1, 200)[0], 64)
        groups = comparison.survey().groups
        assert (1,) in groups
        assert any({2, 4, 8, 16, 32} <= set(group) for group in groups)
        assert comparison.holds(PassSizes(2, 1))
        # Without the bytes of states they seem to be the same.
        rows = {size: comparison._passes(size)[0][0] for size in (1, 2, 4)}
        assert len(set(rows.values())) == 1


def test_a_class_that_snapshots_cannot_drop_the_padding_of_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(random_recurrent(tmp_path / "model.gguf", "qwen35"), None, DRAFTLESS.plan(5)) as e:
        monkeypatch.setattr(Survey, "classes", [PassSizes(8, 4), PassSizes(4, 4), PassSizes(8, 8), PLAIN_ONLY])
        assert e.target.context.n_snapshots == 4
        assert exact_sizes(e.target, code_prompts(e, 1, 200)[0], 5)[0] == PassSizes(4, 4)


@pytest.mark.slow
def test_one_class_is_tried_alone(made: Path) -> None:
    for weights, is_any in (("q8_0", True), ("q4_k_m", False)):
        with engine(wide_target(made, weights), None, DRAFTLESS.plan(64, 8), repack=not is_any) as e:
            tokens = e.target.context.model.tokenize("def read(path):\n", add_special=False)
            assert holds(ANY_SIZE, e.target, tokens, 64) is is_any
            assert holds(large_sizes(LlamaSettings()), e.target, tokens, 64)
            assert e.target.n_cached == 0


def test_classes_follow_from_groups_of_sizes() -> None:
    everything = (1, 2, 3, 4, 7, 8, 9, 10, 12, 16, 32, 64)
    assert classes_of([everything]) == [ANY_SIZE]
    assert classes_of([(1,), everything[1:]]) == [PLAIN_ONLY, PassSizes(2)]
    assert classes_of([everything[:5], everything[5:]]) == [PassSizes(1, 1, 7), PassSizes(8)]
    # Large passes may be a class of their own.
    assert classes_of([everything[:-1], (64,)]) == [PassSizes(1, 1, 32), PassSizes.only(64)]
    # Four rows at a time, the rest one by one.
    repacked = classes_of([(1, 2, 3), (8, 12, 16, 32, 64), (4,), (7,), (9,), (10,)])
    assert repacked[:2] == [PassSizes(1, 1, 3), PassSizes(8, 4)]
    # On a GPU every size may be its own class; of these, powers of two are taken.
    assert classes_of([(n,) for n in everything]) == [PassSizes.only(n) for n in (1, 2, 4, 8, 16, 32, 64)]
