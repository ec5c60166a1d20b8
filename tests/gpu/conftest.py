"""What the tests on a GPU backend share. Without a device that llama.cpp can use, they are skipped."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from specrun.hardware.machine import Device, offload_devices
from specrun.llama import devices, library


@pytest.fixture(autouse=True)
def gpu() -> Device:
    """The first device that layers can lie on."""
    found = offload_devices(devices.devices())
    if not found:
        pytest.skip("llama.cpp sees no GPU; scripts/test-gpu brings a device in software")
    return found[0]


@pytest.fixture
def log() -> Iterator[list[str]]:
    """The lines that llama.cpp logs."""
    lines: list[str] = []
    handler, level = logging.Handler(), library.logger.level
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    library.logger.setLevel(logging.DEBUG)
    library.logger.addHandler(handler)
    yield lines
    library.logger.removeHandler(handler)
    library.logger.setLevel(level)
