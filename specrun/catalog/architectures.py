"""architectures.toml: what llama.cpp does with models of each architecture, by the name of what it does."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLES = tomllib.loads((Path(__file__).parent / "architectures.toml").read_text(encoding="utf-8"))

READ_IN = str(_TABLES.pop("read_in"))
"""Release of llama-cpp-python in whose llama.cpp the tables were read."""

TABLES = {name: frozenset(map(str, architectures)) for name, architectures in _TABLES.items()}
"""The architectures of each table, by its name in the file."""


def does(what: str, architecture: str | None) -> bool:
    """Whether an architecture is in the table of this name."""
    return architecture in TABLES[what]
