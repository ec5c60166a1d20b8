"""Names of files and repositories: which may become parts of paths, and what the name of a GGUF file tells.

Names come from catalogs, hubs and users, and none may lead out of the cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NAME = re.compile(r"[\w-][\w.+=@-]*", re.ASCII)
_REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f\\:]")
_LONGEST = 255  # bytes of a file name, in all usual file systems

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_QUANTIZATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|BF16|F16|F32|FP16|TQ\d_\d|MXFP4(?:_[A-Z]+)*))(?=$|[-.])",
    re.IGNORECASE,
)
_NOT_MODELS = ("mmproj", "imatrix", "-vocab", "ggml-vocab")  # projectors, calibration data, bare tokenizers
# How publishers name heads, which draft for a model, and adapters, which change one. A whole model with MTP layers has
# MTP within its name; a head has it as its folder, at the beginning (llama.cpp's rule) or at the end (GGUF's rule).
_BESIDE_A_MODEL = re.compile(
    r"(?:^|[-._/])(?:eagle-?3|dflash|dspark|assistant|lora|adapters?|cvector|control[-_]vectors?)(?=$|[-._/])"
    r"|(?:^|/)mtp(?=[-._/])|[-._]mtp$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d")  # of the size or the version, which nearly every model's name has
_DIGEST = re.compile(r"[0-9a-f]{12,}")  # the name of a folder in a cache
_PREFERRED = ("q4_k_m", "q8_0")  # tried in this order where the user names no quantization, as llama.cpp does
_MAX_LISTED = 8  # file names in a message


def is_safe_name(text: str) -> bool:
    """Whether `text` names a commit or a blob: letters, digits and some signs, without a separator."""
    return bool(_NAME.fullmatch(text)) and len(text) <= _LONGEST


def is_safe_repo(text: str) -> bool:
    """Whether `text` is ORG/NAME."""
    return bool(_REPO.fullmatch(text)) and len(text) <= _LONGEST


def is_safe_path(text: str) -> bool:
    """Whether `text` is a path inside of a folder: relative, without `..`, and without the drives of Windows."""
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
    matches = _QUANTIZATION.findall(_stem(file.rpartition("/")[2]))
    return matches[-1] if matches else None


def telling_name(file: str, folder: str) -> str:
    """The name of a model's file, behind that of its folder where the file's own names no model, as `target.gguf` and
    `model-Q4_K_M.gguf` do not.
    """
    names_model = _NUMBER.search(_QUANTIZATION.sub("", _stem(file)))
    return file if names_model or not folder or _DIGEST.fullmatch(folder) else f"{folder}/{file}"


def models_among(files: Iterable[str]) -> list[str]:
    """The models, heads and adapters in a list of file names: single GGUF files, and first shards of split ones."""
    ggufs = [file for file in files if file.lower().endswith(".gguf")]
    models = [file for file in ggufs if not any(part in file.rpartition("/")[2].lower() for part in _NOT_MODELS)]
    return sorted(file for file in models if file == shards(file)[0])


def targets_among(files: Iterable[str], repo: str) -> list[str]:
    """The models among `models_among` that write texts by themselves, by their names.

    Where none is and the repository is named as heads or adapters are, the names of its files tell nothing more.
    """
    models = models_among(files)
    targets = [model for model in models if not _BESIDE_A_MODEL.search(_stem(model))]
    return targets or (models if _BESIDE_A_MODEL.search(repo) else [])


def with_quantization(files: Iterable[str], repo: str, wanted: str | None) -> list[str]:
    """The models of a repository that a quantization means: those that have just this one, else those with it as a part
    of their names, as UD-Q4_K_XL has Q4_K_XL. None: those with the preferred one that comes first, else all.
    """
    models = targets_among(files, repo)
    for choice in (wanted,) if wanted else _PREFERRED:
        if matches := [model for model in models if (quantization(model) or "").lower() == choice.lower()]:
            return matches
    if wanted is None:
        return models
    part = re.compile(rf"(?:^|[-./]){re.escape(wanted)}(?=$|[-./])", re.IGNORECASE)
    return [model for model in models if part.search(_stem(model))]


def listed(files: Sequence[str]) -> str:
    """The first of these names, for a message."""
    return ", ".join(files[:_MAX_LISTED]) + (", ..." if len(files) > _MAX_LISTED else "")


def ambiguous(name: str, repo: str, files: Sequence[str]) -> str:
    """What to say of a name that means several files of a repository."""
    return f"{name} can be {listed(files)}; name one: {repo}/{files[0]}"


def _stem(file: str) -> str:
    """The name without the number of a shard and the ending."""
    return re.sub(r"\.gguf$", "", _SHARD.sub("", file), flags=re.IGNORECASE)
