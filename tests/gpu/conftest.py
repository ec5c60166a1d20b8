"""What the tests on a GPU backend share. Without a device that llama.cpp can use, they are skipped."""

from __future__ import annotations

import pytest

from specrun.hardware.device import Device, offload_devices
from specrun.llama import devices


@pytest.fixture(autouse=True)
def gpu() -> Device:
    """The first device that layers can lie on."""
    found = offload_devices(devices.devices())
    if not found:
        pytest.skip("llama.cpp sees no GPU; scripts/test-gpu brings a device in software")
    return found[0]
