"""What specrun relies on in llama.cpp beyond its public header, each fact with a check for the build that runs.

What a check found is kept on disk, so that only the first use of a build pays for it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from specrun.hardware.cpu import read_flags
from specrun.llama import library
from specrun.locations import data_dir, recall, remember


class KnownCheck:
    """The result of one check with this build of llama.cpp on this kind of processor.

    A build is known by its versions and by path, size and time of change of each of its libraries.
    """

    def __init__(self, name: str, version: int, **further: Any) -> None:
        """version: of the check and of what it checks. further: what else the result depends on, as JSON values."""
        self._of: dict[str, Any] = {
            "check": name,
            "version": version,
            "llama.cpp": [library.build(), library.bindings_version()],
            "libraries": [identity(path)[:3] for path in library.files()],
            "processor": hashlib.sha256(" ".join(sorted(read_flags())).encode()).hexdigest()[:16],
            **further,
        }
        digest = hashlib.sha256(json.dumps(self._of, sort_keys=True).encode()).hexdigest()[:32]
        self._path = data_dir() / "facts" / f"{digest}.json"

    def keep(self, refusal: str) -> None:
        """Remember a result, as `refusal` gives it. If the disk refuses, the next run checks again."""
        remember(self._path, {"of": self._of, "refused": refusal})

    def refusal(self) -> str | None:
        """Why the check failed; empty if it passed, None if that is not known."""
        return recall(self._path, lambda found: str(found["refused"]) if found["of"] == self._of else None)


def identity(path: Path) -> list[str | int]:
    """Path, size, time of change and inode of a file."""
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ino]
