"""How much of a cache serves the next text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from specrun.llama.batch import common_prefix
from specrun.llama.draft import AnyDraft


@pytest.mark.parametrize(
    ("a", "b", "n"), [([], [1], 0), ([1, 2], [1, 2], 2), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], (1, 4, 3), 1)]
)
def test_the_common_prefix_is_counted_in_tokens(a: Sequence[int], b: Sequence[int], n: int) -> None:
    assert common_prefix(a, b) == common_prefix(b, a) == n


def test_texts_may_part_anywhere() -> None:
    text = [*range(37)]
    for n in range(37):
        for other in ([*text[:n], -1, *text[n + 1 :]], [*text[:n], -1], text[:n]):
            assert common_prefix(text, other) == n


def test_a_change_that_fails_is_unfinished_until_another_one_ends() -> None:
    context: Any = None
    draft = AnyDraft(context, 1)

    def interrupted() -> None:
        with draft._changing():
            assert draft._is_unfinished
            raise KeyboardInterrupt

    assert not draft._is_unfinished
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert draft._is_unfinished
    with draft._changing():
        pass
    assert not draft._is_unfinished
