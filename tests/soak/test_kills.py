"""The short form of the kills: some bytes of every file, and some moments."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.soak import kills


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and limits of file sizes")
def test_a_killed_chat_loses_nothing(tmp_path: Path) -> None:
    # At 18 bytes two typed messages are whole, and only the end of the second line is missing.
    counts = kills.kill_for(tmp_path, 0, step=9)
    assert counts["killed at a byte"] > 50
    assert counts["saved before a kill"] > 0
