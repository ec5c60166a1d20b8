"""ggml's types as specrun has them are those of gguf."""

from __future__ import annotations

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from specrun.catalog import ggml_types


@pytest.mark.parametrize("kind", GGMLQuantizationType, ids=lambda kind: kind.name)
def test_a_type_is_as_in_gguf(kind: GGMLQuantizationType) -> None:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    known = ggml_types.numbered(kind)
    assert (known.name, known.block, known.block_bytes) == (kind.name, block, block_bytes)
    assert ggml_types.named(kind.name.lower()) == known
    assert known.row_bytes(block + 1) == 2 * block_bytes


def test_a_type_that_only_gguf_knows_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ggml_types.KNOWN[12]
    monkeypatch.delitem(ggml_types.KNOWN, 12)
    assert ggml_types.numbered(12) == known


def test_a_type_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="99"):
        ggml_types.numbered(99)
