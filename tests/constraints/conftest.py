"""The embedded model, whose tokens grammars are tried with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specrun.catalog import embedded
from specrun.llama import LlamaModel


@pytest.fixture(scope="session")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded.TARGET) as model:
        yield model
