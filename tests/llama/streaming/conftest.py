"""A small model, and what it computes without the ring."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.models import random_llama
from tests.streams import context, written

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]  # pages can be replaced in place on Linux only


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of seven layers of some 40 kB, which neither begin nor end at a page."""
    return random_llama(tmp_path_factory.mktemp("streamed") / "seven-layers.gguf", n_layer=7)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[bytes]:
    """What `written` gives without the ring."""
    with context(model) as plain:
        return written(plain)
