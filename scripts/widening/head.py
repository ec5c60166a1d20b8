"""Make an EAGLE-3 head of a small target fit a wider model that `widening.model` made of this target.

The wider model's hidden state begins with the small one's, so the head's `fc` gets columns of zeros for the rest, and
everything else stays: the head drafts the same tokens at the same cost. Where the wider model has more tokens, they are
never drafted: the head's output keeps its size, and `d2t` says which tokens its rows are of.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import head_in
from specrun.errors import ModelFileError, SpecrunError, UsageError

_EMBEDDING, _OUTPUT, _FUSION, _TOKENS = "token_embd.weight", "output.weight", "fc.weight", "d2t"


def main() -> int:
    """Read the three paths, write the file."""
    parser = argparse.ArgumentParser(
        prog="widening.head", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("head", type=Path, help="an EAGLE-3 head")
    parser.add_argument("source", type=Path, help="the target that it was trained for")
    parser.add_argument("wide", type=Path, help="the wider model made of that target")
    parser.add_argument("destination", type=Path, help="the file to write")
    options = parser.parse_args()
    try:
        widen(options.head, options.source, options.wide, options.destination)
    except SpecrunError as error:
        print(f"widening.head: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def widen(head: Path, source: Path, wide: Path, destination: Path) -> None:
    """Write the head for the wider model. Raises ModelFileError for broken files and UsageError for others."""
    width, wide_width = GgufFile.read(source).n_embd, GgufFile.read(wide).n_embd
    found = head_in(GgufFile.read(head))
    if found is None or found.kind != "eagle3" or found.target_width != width:
        raise UsageError(f"{head} is no EAGLE-3 head of a target like {source}; choose another")
    if wide_width < width:
        raise UsageError(f"{wide} is narrower than {source}; choose one that widening.model made of it")
    values, lent = _tensors(head), _tensors(source)
    values.setdefault(_EMBEDDING, lent[_EMBEDDING])
    values.setdefault(_OUTPUT, lent.get(_OUTPUT, lent[_EMBEDDING]))
    values[_FUSION] = _placed(values[_FUSION], found.target_layers, width, wide_width)
    n_vocab = GgufFile.read(wide).n_vocab
    embedding = values[_EMBEDDING]
    values[_EMBEDDING] = np.pad(embedding, ((0, n_vocab - len(embedding)), (0, 0)))
    if n_vocab > len(values[_OUTPUT]):
        values.setdefault(_TOKENS, np.arange(len(values[_OUTPUT]), dtype=np.int64))
    _write(destination, head, wide, values, wide_width)


def _tensors(path: Path) -> dict[str, Any]:
    """The values of all tensors, matrices as float32."""
    return {
        tensor.name: tensor.data.copy()
        if tensor.tensor_type == gguf.GGMLQuantizationType.I64
        else gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }


def _placed(fusion: Any, layers: tuple[int, ...], width: int, wide_width: int) -> Any:
    """Columns of `fc` for states that begin with the source's."""
    parts = fusion.reshape(len(fusion), len(layers), width)
    return np.pad(parts, ((0, 0), (0, 0), (0, wide_width - width))).reshape(len(fusion), -1)


def _write(destination: Path, head: Path, wide: Path, values: dict[str, Any], wide_width: int) -> None:
    """The head's metadata with the wider model's tokenizer; matrices in Q8_0."""
    writer = gguf.GGUFWriter(destination, "eagle3")
    own = {key: field for key, field in gguf.GGUFReader(head).fields.items() if not key.startswith("tokenizer.")}
    theirs = {key: field for key, field in gguf.GGUFReader(wide).fields.items() if key.startswith("tokenizer.")}
    for key, field in (own | theirs).items():
        if key.startswith("GGUF.") or key in ("general.architecture", "eagle3.target_hidden_size"):
            continue
        item = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=item)
    writer.add_uint32("eagle3.target_hidden_size", wide_width)
    for name, data in values.items():
        if data.ndim == 1:
            writer.add_tensor(name, data)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(data), kind), raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    except OSError as error:
        raise ModelFileError(f"{destination} cannot be written: {error.strerror}; choose another folder") from error
    finally:
        writer.close()


if __name__ == "__main__":
    sys.exit(main())
