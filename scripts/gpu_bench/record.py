"""The raw file: what was measured, part by part. It is written after every row, so an interrupted run loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specrun.errors import UsageError

PARTS = ("passes", "exactness", "memory", "tune", "peers")  # in the order of a run


class Record:
    """The raw file of one machine.

    Raises UsageError if there is a file of another machine, or something else.
    """

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self._path = path
        self.data: dict[str, Any] = {"machine": machine, "parts": {}}
        if path.exists():
            self.data = read(path)
        if self.data["machine"] != machine:
            there = self.data["machine"]
            raise UsageError(
                f"{path} is of another machine ({there['cpu']}, {', '.join(there['cards'])}); give another --output"
            )

    def put(self, name: str, part: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
        """Replace a part, in the file too."""
        parts = {**self.data["parts"], name: {**part, "rows": list(rows)}}
        self.data["parts"] = {name: parts[name] for name in PARTS if name in parts}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}.partial")
        partial.write_text(json.dumps(self.data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(self._path)


def read(path: Path) -> dict[str, Any]:
    """What a raw file holds. Raises UsageError if it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data["machine"], dict) or not set(data["parts"]) <= set(PARTS):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no raw file of scripts/bench_gpu; move it away or give another --output"
        ) from error
    return dict(data)
