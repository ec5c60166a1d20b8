"""A hub on this machine with small models behind the catalog's real names."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog.entries import catalog
from specrun.catalog.file_names import shards
from tests.conftest import SCRIPT
from tests.hub import Hub
from tests.models import random_llama, scripted_llama, split


@pytest.fixture(scope="session")
def stand_ins(made: Path) -> dict[str, list[Path]]:
    """Small models for aliases: a target in three files, and a draft."""
    whole = scripted_llama(made / "whole.gguf", SCRIPT, n_layer=20)
    target = split(made / "target.gguf", whole, 3)
    return {
        "qwen-14b": sorted(made.glob(f"{target.name.partition('-')[0]}-*-of-*.gguf")),
        "qwen-0.5b": [scripted_llama(made / "small.gguf", SCRIPT)],
        "llama-1b": [random_llama(made / "other.gguf")],
    }


@pytest.fixture
def served(hub: Hub, stand_ins: dict[str, list[Path]]) -> Hub:
    """The hub with the models behind their real names."""
    for alias, files in stand_ins.items():
        entry = catalog()[alias]
        names = shards(entry.file)
        repository = hub.add(
            entry.repo, {name: file.read_bytes() for name, file in zip(names, files, strict=True)} | {"README.md": b""}
        )
        repository.commit = entry.revision or repository.commit
        repository.licence = entry.licence or ""
    return hub
