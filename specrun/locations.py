"""Where specrun keeps things, and how they come there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import platformdirs


def data_dir() -> Path:
    """`$SPECRUN_DATA_DIR`, or the user's data directory for specrun."""
    return Path(os.environ.get("SPECRUN_DATA_DIR") or platformdirs.user_data_dir("specrun"))


def config_dir() -> Path:
    """`$SPECRUN_CONFIG_DIR`, or the user's configuration directory for specrun."""
    return Path(os.environ.get("SPECRUN_CONFIG_DIR") or platformdirs.user_config_dir("specrun"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
