"""The demonstration's pair in sizes that a test can afford."""

from __future__ import annotations

import pytest

from specrun.catalog import embedded
from specrun.demo import wide_pair
from specrun.demo.wide_pair import Widening


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded pair a little deeper."""
    widenings = (
        Widening("target", embedded.TARGET, {"layers": 9}, "q8_0"),
        Widening("draft", embedded.DRAFT, {"layers": 5}, "q8_0"),
    )
    monkeypatch.setattr(wide_pair, "WIDENINGS", widenings)
