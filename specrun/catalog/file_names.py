"""Names of files and repositories: which may become parts of paths, and what the name of a GGUF file tells.

Names come from catalogs, hubs and users, and none may lead out of the cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"[\w-][\w.+=@-]*", re.ASCII)
_REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f\\]")
_LONGEST = 255  # bytes of a file name, in all usual file systems

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_QUANTIZATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|BF16|F16|F32|FP16|TQ\d_\d|MXFP4(?:_[A-Z]+)*))(?=$|[-.])",
    re.IGNORECASE,
)
_NOT_MODELS = ("mmproj", "imatrix", "-vocab", "ggml-vocab")  # projectors, calibration data, bare tokenizers
_PREFERRED = ("q4_k_m", "q8_0")  # tried in this order where the user names no quantization, as llama.cpp does


def is_safe_name(text: str) -> bool:
    """Whether `text` names a commit or a blob: letters, digits and some signs, without a separator."""
    return bool(_NAME.fullmatch(text)) and len(text) <= _LONGEST


def is_safe_repo(text: str) -> bool:
    """Whether `text` is ORG/NAME."""
    return bool(_REPO.fullmatch(text)) and len(text) <= _LONGEST


def is_safe_path(text: str) -> bool:
    """Whether `text` is a path inside of a folder: relative, and without `..`."""
    parts = text.split("/")
    return not _NOT_IN_PATHS.search(text) and all(
        part not in ("", ".", "..") and len(part.encode(errors="replace")) <= _LONGEST for part in parts
    )


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
    """The models with the quantization `wanted`; None: with the preferred one that comes first, else all models."""
    models = models_among(files)
    for choice in (wanted,) if wanted else _PREFERRED:
        if matches := [model for model in models if (quantization(model) or "").lower() == choice.lower()]:
            return matches
    return [] if wanted else models
