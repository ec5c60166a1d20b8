"""This machine and the software on it. They are asked for in a process of their own, because asking takes VRAM."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specrun
from specrun.errors import LlamaError, UsageError
from specrun.llama import devices, library
from specrun.processes import child_process

_GIB = 2**30


@dataclass(frozen=True)
class Here:
    """machine: what the numbers depend on, without anything private. software: versions. backend: of the first card."""

    machine: dict[str, Any]
    software: dict[str, str]
    backend: str

    @classmethod
    def read(cls) -> Here:
        """Raises UsageError if llama.cpp sees no card."""
        found = child_process.answer(__name__, {}, "the search for cards", lambda: None, debug=False)
        if not found["backend"]:
            raise UsageError(
                f"llama.cpp in this environment sees no card; `{sys.executable} -m specrun doctor` says what mends it"
            )
        return cls(**found)


def serve(_request: str) -> None:
    """Print the fields of `Here`, which are empty without a card."""
    child_process.reply("{}", lambda _given: _found(), failures=LlamaError)


def _found() -> dict[str, Any]:
    here = devices.this_machine()
    machine = {
        "cpu": f"{here.cpu.name}, {here.cpu.n_usable} cores",
        "ram": f"{here.memory.total_bytes / _GIB:.0f} GiB",
        "cards": [f"{one.description}, {one.total_bytes / _GIB:.0f} GiB" for one in here.gpus],
        "system": f"{here.system} {here.architecture}",
    }
    software = {
        "driver": here.driver or "unknown",
        "specrun": _revision(),
        "llama.cpp": f"{here.llama['llama.cpp']} ({', '.join(library.backends())})",
        "llama-cpp-python": here.llama["llama-cpp-python"],
        "Python": platform.python_version(),
        "kernel": here.release,
    }
    return {"machine": machine, "software": software, "backend": here.gpus[0].backend if here.gpus else ""}


def _revision() -> str:
    """The version, and in parentheses the commit of this clone; `changed` where files differ from it."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=10", "--dirty=, changed"]
    try:
        commit = subprocess.check_output(command, cwd=Path(__file__).parent, encoding="utf-8").strip()
    except (OSError, subprocess.SubprocessError):  # no git, or no clone
        return specrun.__version__
    return f"{specrun.__version__} ({commit})"
