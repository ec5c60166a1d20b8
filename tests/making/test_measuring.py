"""How well a draft guesses, on real models; and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specrun.errors import PairError
from specrun.long_run import Run
from specrun.making.measuring import Reference, best_tree, measure, read_target
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from tests.models import random_llama, random_mamba


@pytest.fixture(scope="module")
def reference(demo_target: Path) -> Reference:
    return read_target(demo_target, Run())


@pytest.mark.slow
def test_the_target_agrees_with_itself(reference: Reference, demo_target: Path) -> None:
    found = measure(demo_target, reference, Run())
    # As a draft it may run with another attention, and in passes of another size, which changes near-ties.
    assert found.agreement == pytest.approx(1, abs=0.05)
    assert found.overlap == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_a_trained_draft_agrees_more_than_a_random_one(
    reference: Reference, demo_draft: Path, random_model: Path
) -> None:
    trained, other = measure(demo_draft, reference, Run()), measure(random_model, reference, Run())
    assert trained.agreement > 0.4 > 0.1 > other.agreement
    assert trained.overlap > 0.4 > 0.1 > other.overlap
    assert trained.tokens_per_pass > other.tokens_per_pass


@pytest.mark.slow
@pytest.mark.parametrize("extra", [0, 64])
def test_a_model_agrees_with_its_copy_whose_vocabulary_is_padded_to_another_size(tmp_path: Path, extra: int) -> None:
    draft = random_llama(tmp_path / "draft.gguf", vocab_extra=extra)
    target = random_llama(tmp_path / "target.gguf", vocab_extra=64 - extra, n_silent=1)
    found = measure(draft, read_target(target, Run()), Run())
    assert found.agreement == pytest.approx(1, abs=0.08)  # random weights have many near-ties
    assert found.overlap == pytest.approx(1, abs=0.08)


def test_a_recurrent_target_has_no_draft(tmp_path: Path) -> None:
    with pytest.raises(PairError, match="recurrent"):
        read_target(random_mamba(tmp_path / "mamba.gguf"), Run())


def test_ctrl_c_ends_the_measurement(demo_target: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        read_target(demo_target, Run(interrupted=lambda: True))


@pytest.mark.parametrize(
    ("agreement", "cost", "depth", "speedup"),
    [
        (0.0, 0.1, 1, 1 / 1.1),
        (1.0, 0.0, 15, 16.0),
        (0.5, 0.1, 2, 1.75 / 1.2),
        (0.8, 0.25, 3, 2.952 / 1.75),
    ],
)
def test_the_best_tree_is_a_chain_if_only_the_best_candidate_is_ever_accepted(
    agreement: float, cost: float, depth: int, speedup: float
) -> None:
    costs = CostTable(PassTime(n, 64, 7.0) for n in (1, 2, 4, 16))
    draft = CostTable([PassTime(1, 64, 7.0 * cost)])
    tree, found = best_tree([agreement], CostModel(costs, draft), plain_ms=7.0)
    assert found == pytest.approx(speedup)
    assert (tree.depth, tree.n_leaves) == (depth, 1)


def test_a_draft_whose_first_candidate_is_worse_wins_with_a_tree_where_large_passes_are_cheap() -> None:
    draft = CostTable(PassTime(n, 64, 1.0) for n in (1, 4, 16))
    sizes = (1, 2, 4, 8, 16, 32, 64)
    cheap = CostModel(CostTable(PassTime(n, 64, 100.0) for n in sizes), draft)
    dear = CostModel(CostTable(PassTime(n, 64, 100.0 + 50.0 * n) for n in sizes), draft)
    broad, sharp = [0.6, 0.2, 0.1, 0.05], [0.65]
    assert best_tree(broad, cheap, 100.0)[1] > best_tree(sharp, cheap, 100.0)[1]
    assert best_tree(broad, cheap, 100.0)[0].n_leaves > 1
    assert best_tree(broad, dear, 150.0)[1] < best_tree(sharp, dear, 150.0)[1]


@pytest.mark.slow
def test_plain_decoding_has_the_memory_that_the_draft_takes(reference: Reference, demo_draft: Path) -> None:
    # As if every pass of the target read more from disk beside the draft than alone.
    streamed_less = replace(reference, place=(0, -1), plain_ms=reference.plain_ms / 1000)
    assert measure(demo_draft, reference, Run()).speedup > 0.1
    assert measure(demo_draft, streamed_less, Run()).speedup < 0.01
