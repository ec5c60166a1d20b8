"""Bounds of integers as digits: exactly the integers between them, by trying all."""

from __future__ import annotations

import re

import numpy as np
import pytest

from specrun.constraints.integers import integer_between


def as_regex(gbnf: str) -> re.Pattern[str]:
    """The regular expression for GBNF that has only literals, classes, groups and counts."""
    return re.compile(re.sub(r'"([^"]*)"', r"\1", gbnf).replace(" ", ""))


def test_every_pair_of_small_bounds() -> None:
    numbers = range(-130, 131)
    rng = np.random.default_rng(0)
    pairs = [(-130, 130), (0, 0), (-1, 0), (0, 9), (-9, -1), (10, 99), (100, 100), (-100, -99)]
    pairs += [tuple(sorted(rng.integers(-130, 131, 2).tolist())) for _ in range(200)]
    for low, high in pairs:
        gbnf = integer_between(low, high)
        assert gbnf
        pattern = as_regex(gbnf)
        for number in numbers:
            assert bool(pattern.fullmatch(str(number))) == (low <= number <= high), (low, high, number, gbnf)
        for text in ("", "-", "00", "01", "-01", "-0", "+1", "1.0", "1e1"):
            assert not pattern.fullmatch(text), (low, high, text, gbnf)


@pytest.mark.parametrize(("low", "high"), [(987, 123_456), (1, 10**15 - 1), (None, 4203), (4203, None), (None, None)])
def test_large_and_open_bounds(low: int | None, high: int | None) -> None:
    gbnf = integer_between(low, high)
    assert gbnf
    pattern = as_regex(gbnf)
    bounds = [bound for bound in (low, high, 0, 10**15 - 1, -(10**15) + 1) if bound is not None]
    edges = [bound + step for bound in bounds for step in (-1, 0, 1)]
    edges += np.random.default_rng(1).integers(-(10**6), 10**6, 300).tolist()
    for number in edges:
        inside = (low is None or low <= number) and (high is None or number <= high) and abs(number) < 10**15
        assert bool(pattern.fullmatch(str(number))) == inside, number


def test_no_integer_is_between() -> None:
    assert integer_between(5, 4) is None
    assert integer_between(10**15, None) is None
    assert integer_between(None, -(10**15)) is None
