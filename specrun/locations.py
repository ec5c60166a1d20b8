"""Where specrun keeps things."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def data_dir() -> Path:
    """`$SPECRUN_DATA_DIR`, or the user's data directory for specrun."""
    return Path(os.environ.get("SPECRUN_DATA_DIR") or platformdirs.user_data_dir("specrun"))


def config_dir() -> Path:
    """`$SPECRUN_CONFIG_DIR`, or the user's configuration directory for specrun."""
    return Path(os.environ.get("SPECRUN_CONFIG_DIR") or platformdirs.user_config_dir("specrun"))
