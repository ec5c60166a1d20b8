"""Names of tensors tell their layers, and which are experts; and how far a header is read."""

from __future__ import annotations

from pathlib import Path

from specrun.catalog.gguf_header import is_expert, layer_of, read_beginning, read_header
from tests.models import TOKENS, Reader, metadata_of, write_tensors


def test_names_of_tensors() -> None:
    assert layer_of("blk.12.ffn_up_exps.weight") == 12
    assert layer_of("output.weight") is None
    assert is_expert("blk.12.ffn_up_exps.weight")
    assert is_expert("blk.0.ffn_gate_up_exps.weight")
    assert not is_expert("blk.12.ffn_up_shexp.weight")
    assert not is_expert("blk.12.ffn_gate_inp.weight")


def test_a_vocabulary_that_comes_last_is_not_read(tmp_path: Path, random_model: Path) -> None:
    reader = Reader(random_model)
    values = metadata_of(reader)
    ordered = {key: values[key] for key in sorted(values, key=lambda key: (key.startswith("tokenizer."), key))}
    described = write_tensors(tmp_path / "described-first.gguf", ordered, reader.tensors)
    beginning, whole = read_beginning(described), read_header(described).metadata
    assert dict(beginning) == {key: value for key, value in whole.items() if not key.startswith("tokenizer.")}
    assert TOKENS in read_beginning(random_model), "it has its vocabulary first"
