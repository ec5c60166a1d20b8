"""`specrun doctor`: what this machine and this installation are like, and what would make specrun slow or fail."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from specrun.catalog.entries import READ_IN

FACT = "fact: "  # what begins the name of a check of a fact about llama.cpp
_REBUILD = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
_OPTIONS = {"ROCm": "HIP", "MTL": "METAL"}  # backends whose option has another name
_RUNTIME = re.compile(r"\.\[cuda\d+\]")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    status: warn: something is slower than it could be, or missing; fail: something will not work.
    detail: what was seen, in one line. fix: a command or a step that mends it; empty where nothing has to be mended.
    """

    check: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""


def rebuild(backends: Collection[str], *options: str) -> str:
    """The command that compiles llama.cpp for this machine. options: further ones of CMake's."""
    return _with_backends(backends, options) + _REBUILD


def known_build(backends: Collection[str]) -> str:
    """The command that installs the release in which all facts hold."""
    return f"{_with_backends(backends)}pip install llama-cpp-python=={READ_IN}"


def loading_fix(error: str) -> str:
    """What to do about a library that could not be loaded. error: what `specrun.llama.shared_library` says."""
    found = _RUNTIME.search(error)
    return f"pip install '{found[0]}'" if found else _REBUILD


def _with_backends(backends: Collection[str], options: Collection[str] = ()) -> str:
    kept = (f"-DGGML_{_OPTIONS.get(name, name.upper())}=on" for name in backends if name != "CPU")
    words = list(dict.fromkeys([*kept, *options]))
    if not words:
        return ""
    return f"CMAKE_ARGS={words[0]} " if len(words) == 1 else f'CMAKE_ARGS="{" ".join(words)}" '
