"""Numbers as people read them."""

from __future__ import annotations

import pytest

from specrun.units import size_text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (12_000, "12 kB"),
        (675_710_816, "676 MB"),
        (8_988_110_496, "8.99 GB"),
        (142_000_000_000, "142 GB"),
    ],
)
def test_sizes(n_bytes: int, text: str) -> None:
    assert size_text(n_bytes) == text
