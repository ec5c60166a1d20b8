"""A server that several tests of a file ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving.running import Server, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of the embedded pair with trees, greedy unless a request says otherwise."""
    with running() as server:
        yield server
