"""What kind of model a file holds."""

from __future__ import annotations

from specrun.catalog.entries import Kind
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.recurrent_layers import is_untried, recurrent_layers


def kind_of(file: GgufFile) -> Kind:
    """As `Entry.kind`, by the file's metadata and tensors."""
    if file.n_experts:
        return "moe"
    return "hybrid" if recurrent_layers(file) or is_untried(file) else "dense"
