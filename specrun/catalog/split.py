"""What file names of GGUF models tell: the shards of a split model, the quantization, the models of a repository."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_QUANTIZATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|BF16|F16|F32|FP16|TQ\d_\d|MXFP4(?:_[A-Z]+)*))(?=$|[-.])",
    re.IGNORECASE,
)
_NOT_MODELS = ("mmproj", "imatrix", "-vocab", "ggml-vocab")  # projectors, calibration data, bare tokenizers
_PREFERRED = ("q4_k_m", "q8_0")  # taken in this order if the user names no quantization, as in llama.cpp


def shards(file: str) -> tuple[str, ...]:
    """Names of all files of the model that `file` belongs to, in order: its shards, or `file` alone."""
    match = _SHARD.search(file)
    if not match:
        return (file,)
    n_shards = int(match[2])
    return tuple(f"{file[: match.start()]}-{i:05d}-of-{match[2]}.gguf" for i in range(1, n_shards + 1))


def quantization(file: str) -> str | None:
    """The quantization in a file's name, spelled as there; None if the name has none."""
    name = _SHARD.sub("", file.rsplit("/", 1)[-1]).removesuffix(".gguf").removesuffix(".GGUF")
    matches = _QUANTIZATION.findall(name)
    return matches[-1] if matches else None


def models_among(files: Iterable[str]) -> list[str]:
    """The models in a list of file names: single GGUF files, and the first shards of split models."""
    ggufs = [file for file in files if file.lower().endswith(".gguf")]
    models = [file for file in ggufs if not any(part in file.rsplit("/", 1)[-1].lower() for part in _NOT_MODELS)]
    return sorted(file for file in models if file == shards(file)[0])


def with_quantization(files: Iterable[str], wanted: str | None) -> list[str]:
    """The models in a list of file names that have the quantization `wanted`.

    With None, those of the first preferred quantization that occurs, or all models if none does.
    """
    models = models_among(files)
    for choice in (wanted,) if wanted else _PREFERRED:
        if matches := [model for model in models if (quantization(model) or "").lower() == choice.lower()]:
            return matches
    return [] if wanted else models
