"""From llama.cpp's error lines to errors of one line that say what to do."""

from __future__ import annotations

import re
from pathlib import Path

from specrun.display_text import one_line
from specrun.errors import LlamaError, ModelFileError, OutOfMemoryError, UsageError

_LOG_PREFIX = re.compile(r"^(\w+: |error loading model[\w ]*: )*")

# Part of llama.cpp's error message -> advice.
_LOAD_ADVICE = {
    "not within the file bounds": "download the file again",
    "failed to read": "the file is incomplete, download it again",
    "unexpectedly reached end of file": "the file is incomplete, download it again",
    "' not found": "the file lacks weights (a vocabulary-only file?), choose another",
    "missing tensor": "the file lacks weights (a vocabulary-only file?), choose another",
    "unknown model architecture": "this llama.cpp does not know it, upgrade llama-cpp-python",
    "allocate": "not enough memory, choose a smaller quantization or fewer --gpu-layers",
}


def load_failure(path: Path, errors: list[str]) -> ModelFileError | OutOfMemoryError:
    """The error for a model that llama.cpp did not load, with advice."""
    reason = next((line for line in errors if "error loading model" in line or "failed" in line), "unknown reason")
    reason = _LOG_PREFIX.sub("", reason)
    text = " ".join(errors)
    advice = next((advice for sign, advice in _LOAD_ADVICE.items() if sign in text), "--debug shows llama.cpp's log")
    failure = OutOfMemoryError if lacks_memory(errors) else ModelFileError
    return failure(f"{path} cannot be loaded: {one_line(reason)}; {advice}")


def context_failure(what: str, errors: list[str]) -> LlamaError | UsageError:
    """The error for a context that llama.cpp did not create, with advice. what: describes the context."""
    reason = errors[-1] if errors else ""
    refused = next((line for line in errors if "cache type" in line or "V cache" in line), None)
    if refused:
        return UsageError(f"llama.cpp could not create {what} ({refused}); choose another --cache-type-k or -v")
    detail = f" ({reason})" if reason else ""
    if not errors or lacks_memory(errors):
        return OutOfMemoryError(f"llama.cpp could not create {what}{detail}; try a smaller --ctx-size")
    return LlamaError(f"llama.cpp could not create {what}{detail}; --debug shows its log")


def lacks_memory(errors: list[str]) -> bool:
    """Whether llama.cpp's error lines report a failed allocation."""
    return any(sign in line for line in errors for sign in ("allocat", "bad_alloc", "out of memory"))
