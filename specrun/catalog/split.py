"""File names of GGUF models: the shards of a split one, the quantization, which file of a repository is meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_QUANTIZATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|BF16|F16|F32|FP16|TQ\d_\d|MXFP4(?:_[A-Z]+)*))(?=$|[-.])",
    re.IGNORECASE,
)
_NOT_MODELS = ("mmproj", "imatrix", "-vocab", "ggml-vocab")  # projectors, calibration data, bare tokenizers
_PREFERRED = ("q4_k_m", "q8_0")  # what a repository means when nothing is said, as with llama.cpp


def shards(file: str) -> tuple[str, ...]:
    """All files of the model that `file` belongs to, in order: itself alone, or its shards."""
    match = _SHARD.search(file)
    if not match:
        return (file,)
    n_shards = int(match[2])
    return tuple(f"{file[: match.start()]}-{i:05d}-of-{match[2]}.gguf" for i in range(1, n_shards + 1))


def quantization(file: str) -> str | None:
    """The quantization that a file's name tells, as it is written there; None if it tells none."""
    name = _SHARD.sub("", file.rsplit("/", 1)[-1]).removesuffix(".gguf").removesuffix(".GGUF")
    found = _QUANTIZATION.findall(name)
    return found[-1] if found else None


def models_among(files: Iterable[str]) -> list[str]:
    """The models in a list of file names: single GGUF files, and the first shard of split ones."""
    ggufs = [file for file in files if file.lower().endswith(".gguf")]
    models = [file for file in ggufs if not any(part in file.rsplit("/", 1)[-1].lower() for part in _NOT_MODELS)]
    return sorted(file for file in models if file == shards(file)[0])


def with_quantization(files: Iterable[str], wanted: str | None) -> list[str]:
    """The models in a list of file names that have a quantization.

    wanted None: those of the first preferred quantization that is there, or all if none is.
    """
    models = models_among(files)
    for choice in (wanted,) if wanted else _PREFERRED:
        if found := [model for model in models if (quantization(model) or "").lower() == choice.lower()]:
            return found
    return [] if wanted else models
