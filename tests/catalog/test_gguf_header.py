"""Names of tensors tell their layers, and which are experts; ggml's types as specrun has them are those of gguf."""

from __future__ import annotations

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from specrun.catalog import gguf_header
from specrun.catalog.gguf_header import is_expert, layer_of


def test_names_of_tensors() -> None:
    assert layer_of("blk.12.ffn_up_exps.weight") == 12
    assert layer_of("output.weight") is None
    assert is_expert("blk.12.ffn_up_exps.weight")
    assert is_expert("blk.0.ffn_gate_up_exps.weight")
    assert not is_expert("blk.12.ffn_up_shexp.weight")
    assert not is_expert("blk.12.ffn_gate_inp.weight")


@pytest.mark.parametrize("kind", GGMLQuantizationType, ids=lambda kind: kind.name)
def test_a_type_is_as_in_gguf(kind: GGMLQuantizationType) -> None:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    known = gguf_header.type_numbered(kind)
    assert (known.name, known.block, known.block_bytes) == (kind.name, block, block_bytes)
    assert gguf_header.type_named(kind.name.lower()) == known
    assert known.row_bytes(block + 1) == 2 * block_bytes


def test_a_type_that_only_gguf_knows_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = gguf_header.KNOWN_TYPES[12]
    monkeypatch.delitem(gguf_header.KNOWN_TYPES, 12)
    assert gguf_header.type_numbered(12) == known


def test_a_type_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="99"):
        gguf_header.type_numbered(99)
