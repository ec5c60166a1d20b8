"""llama.cpp knows every architecture of the catalog."""

from __future__ import annotations

from pathlib import Path

import llama_cpp.llama_cpp

from specrun.catalog.entries import catalog


def test_no_architecture_of_the_catalog_is_unknown() -> None:
    library = Path(llama_cpp.llama_cpp._lib._name).read_bytes()
    architectures = {entry.architecture for entry in catalog().values()}
    assert len(architectures) > 10
    # Linkers keep a string that is the end of another one only there, so what comes before it may be anything.
    missing = [name for name in architectures if name and name.encode() + b"\0" not in library]
    assert not missing
