"""The outcomes of a pass come likeliest first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest

from specrun.engine.overlap import NextTokens, likeliest
from specrun.sampling import Candidates
from specrun.speculation.tree import TokenTree

# The root 9; 1 and 2 below it, 3 below 1. Accepted with chances 0.6, 0.1 and 0.3.
TREE = TokenTree.build([9, 1, 2, 3], [-1, 0, 0, 1], np.log([1.0, 0.6, 0.1, 0.3]).tolist())


def thinks(asked: list[tuple[int, ...]]) -> NextTokens:
    """A draft that thinks 1 to 5 ever less likely, whatever came before."""

    def next_tokens(path: Sequence[int]) -> Candidates:
        asked.append(tuple(path))
        return Candidates(np.arange(1, 6), np.log([0.5, 0.2, 0.15, 0.1, 0.05]))

    return next_tokens


def test_likeliest_first_and_never_a_drafted_token() -> None:
    found = list(likeliest(TREE, thinks([])))
    # It ends at the root, 1 and 1 3 with 0.3 each, at 2 with 0.1.
    chances = {path: _chance(path) for path in found}
    assert list(chances.values()) == sorted(chances.values(), reverse=True)
    assert sum(chances.values()) == pytest.approx(1.0)
    assert len(found) == 3 + 4 + 5 + 5
    assert not {(1,), (2,), (1, 3)} & set(found)
    assert found[0] == (1, 1)


def _chance(path: tuple[int, ...]) -> float:
    ends = {(): 0.3, (1,): 0.3, (2,): 0.1, (1, 3): 0.3}[path[:-1]]
    drafted = {(): {1, 2}, (1,): {3}}.get(path[:-1], set())
    shares = {t: s for t, s in zip(range(1, 6), [0.5, 0.2, 0.15, 0.1, 0.05], strict=True) if t not in drafted}
    return ends * shares[path[-1]] / sum(shares.values())


def test_the_draft_is_asked_as_far_as_it_matters() -> None:
    asked: list[tuple[int, ...]] = []
    assert list(islice(likeliest(TREE, thinks(asked)), 1)) == [(1, 1)]
    assert sorted(asked) == [(), (1,), (1, 3)]


def test_a_draft_with_nothing_to_say() -> None:
    nothing = Candidates(np.empty(0, np.int64), np.empty(0))
    assert list(likeliest(TREE, lambda _: nothing)) == []


def test_unlikely_outcomes_are_left_out() -> None:
    whole = list(likeliest(TREE, thinks([])))
    likely = list(likeliest(TREE, thinks([]), 0.05))
    assert likely == whole[: len(likely)]
    assert all(_chance(path) >= 0.05 for path in likely)
    assert _chance(whole[len(likely)]) < 0.05
