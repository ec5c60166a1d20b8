"""What kind of model a file holds."""

from __future__ import annotations

from specrun.catalog.entries import Kind
from specrun.catalog.gguf_file import GgufFile

_RECURRENT = (".ssm.", ".wkv_", ".shortconv.", ".kda.")  # in metadata keys of architectures with a recurrent state


def kind_of(file: GgufFile) -> Kind:
    """As `Entry.kind`, by the file's metadata."""
    if file.n_experts:
        return "moe"
    return "hybrid" if any(part in key for key in file.metadata for part in _RECURRENT) else "dense"
