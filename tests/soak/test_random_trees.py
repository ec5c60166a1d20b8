"""The short form of the random trees, and that a wrong rule would be found."""

from __future__ import annotations

import pytest

from specrun.speculation import accept as accept_module
from specrun.speculation.accept import Accepted, sample_and_match
from tests.soak import random_trees
from tests.soak.random_trees import LOSSY, RULES, SAMPLE_AND_MATCH, SAMPLED, through

N_TREES = 300


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_keeps_what_it_promises(rule: str) -> None:
    outcome = through(rule, N_TREES)
    assert outcome.trees == N_TREES
    assert outcome.accepted > N_TREES / 3
    if rule in SAMPLED and rule not in LOSSY:
        assert outcome.p_value > 1e-4


@pytest.mark.long
def test_a_rule_that_is_not_the_targets_is_found() -> None:
    """Typical acceptance, which is lossy, is counted as the others are."""
    assert through("typical", 2000).p_value < 1e-6


def test_a_token_that_plain_decoding_does_not_write_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: object) -> Accepted:
        accepted = sample_and_match(*arguments)  # type: ignore[arg-type]
        return Accepted(accepted.path, [*accepted.tokens[:-1], 0])

    monkeypatch.setattr(accept_module, "sample_and_match", wrong)
    with pytest.raises(AssertionError, match=r"impossible|plain decoding writes"):
        through(SAMPLE_AND_MATCH, 50)


def test_a_path_that_leaves_the_tree_is_found() -> None:
    tree = random_trees.TokenTree.chain([1, 2, 3])
    with pytest.raises(AssertionError):
        random_trees.check_path(tree, Accepted([0, 2], [3, 5]))
    with pytest.raises(AssertionError):
        random_trees.check_path(tree, Accepted([0, 1], [4, 5]))
