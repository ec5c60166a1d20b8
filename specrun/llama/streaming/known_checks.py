"""What self-checks of earlier runs found, kept on disk, so that only the first load of a file pays for one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specrun.llama import library
from specrun.llama_settings import LlamaSettings
from specrun.locations import data_dir, recall, remember

_VERSION = 1  # of the check and of what it checks, the ring and the gate; raise it when one of them changes


class KnownCheck:
    """The result of the check of one model with one llama.cpp, settings of the context, and number of slots.

    A file is known by its path, size, time of change and inode. With the ring's other settings, and with other
    resident layers, the result is the same, because the check streams all layers.
    """

    def __init__(self, files: Iterable[Path], settings: LlamaSettings, n_slots: int) -> None:
        self._of: dict[str, Any] = {
            "version": _VERSION,
            "llama.cpp": [library.build(), library.bindings_version()],
            "files": [_identity(path) for path in files],
            "attention": [settings.flash_attn, settings.type_k, settings.type_v],
            "slots": n_slots,
        }
        name = hashlib.sha256(json.dumps(self._of, sort_keys=True).encode()).hexdigest()[:32]
        self._path = data_dir() / "streaming" / f"{name}.json"

    @property
    def is_passed(self) -> bool:
        """Whether the bits were the same."""
        found = self._read()
        return found is not None and not found["refused"]

    @property
    def refusal(self) -> str | None:
        """Why the model can never be streamed; None if that is not known."""
        found = self._read()
        return (found["refused"] or None) if found else None

    def keep(self, refusal: str = "") -> None:
        """Remember a result. refusal: why the model can never be streamed; empty if the bits were the same.

        If the disk refuses, the next run checks again.
        """
        remember(self._path, {"of": self._of, "refused": refusal})

    def _read(self) -> dict[str, str] | None:
        return recall(self._path, lambda found: {"refused": str(found["refused"])} if found["of"] == self._of else None)


def _identity(path: Path) -> list[str | int]:
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ino]
