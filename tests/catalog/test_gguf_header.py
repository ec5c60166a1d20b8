"""Names of tensors tell their layers, and which are experts."""

from __future__ import annotations

from specrun.catalog.gguf_header import is_expert, layer_of


def test_names_of_tensors() -> None:
    assert layer_of("blk.12.ffn_up_exps.weight") == 12
    assert layer_of("output.weight") is None
    assert is_expert("blk.12.ffn_up_exps.weight")
    assert is_expert("blk.0.ffn_gate_up_exps.weight")
    assert not is_expert("blk.12.ffn_up_shexp.weight")
    assert not is_expert("blk.12.ffn_gate_inp.weight")
