"""How well a draft guesses, on real models; and what follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.errors import PairError
from specrun.making.measuring import Reference, measure, read_target
from specrun.speculation.planning.costs import CostTable, PassTime
from tests.models import random_llama, random_mamba


def ignore(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def reference(demo_target: Path) -> Reference:
    return read_target(demo_target, ignore, ignore)


def test_the_target_agrees_with_itself(reference: Reference, demo_target: Path) -> None:
    found = measure(demo_target, reference, ignore)
    assert found.agreement == pytest.approx(1, abs=0.01)  # passes of other sizes may change a near-tie
    assert found.overlap == pytest.approx(1, abs=0.01)


def test_a_trained_draft_agrees_more_than_a_random_one(
    reference: Reference, demo_draft: Path, random_model: Path
) -> None:
    trained, other = measure(demo_draft, reference, ignore), measure(random_model, reference, ignore)
    assert trained.agreement > 0.4 > 0.1 > other.agreement
    assert trained.overlap > 0.4 > 0.1 > other.overlap
    assert trained.speedup > other.speedup


def test_vocabularies_that_are_padded_to_other_sizes(tmp_path: Path) -> None:
    for extra in (0, 64):
        padded = random_llama(tmp_path / "padded.gguf", vocab_extra=extra)
        theirs = read_target(random_llama(tmp_path / "target.gguf", vocab_extra=64 - extra, n_layer=3), ignore, ignore)
        quality = measure(padded, theirs, ignore)
        # Two models with random weights share almost nothing, but each gives every token a probability above 0.
        assert 0 < quality.overlap < 0.02
        assert quality.agreement < 0.02


def test_a_recurrent_target_has_no_draft(tmp_path: Path) -> None:
    with pytest.raises(PairError, match="recurrent"):
        read_target(random_mamba(tmp_path / "mamba.gguf"), ignore, ignore)


def test_whatever_show_raises_ends_it(demo_target: Path) -> None:
    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_target(demo_target, stop, ignore)


@pytest.mark.parametrize(
    ("agreement", "cost", "depth", "speedup"),
    [
        (0.0, 0.1, 1, 1 / 1.1),
        (1.0, 0.0, 16, 17.0),
        (0.5, 0.1, 2, 1.75 / 1.2),
        (0.8, 0.25, 4, 3.3616 / 2),
    ],
)
def test_the_best_chain_where_passes_of_all_sizes_take_the_same(
    agreement: float, cost: float, depth: int, speedup: float
) -> None:
    costs = CostTable(PassTime(n, 64, 7.0) for n in (1, 2, 3, 5, 9, 17))
    assert Reference(Path(), [], costs).best_chain(agreement, cost) == (depth, pytest.approx(speedup))
