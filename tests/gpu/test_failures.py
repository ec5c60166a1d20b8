"""Devices that are not there. What fails while it computes is in `test_first_pass.py` and `test_rpc.py`."""

from __future__ import annotations

import pytest

from specrun.hardware.machine import Device
from specrun.llama import devices
from tests.conftest import Specrun

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_a_device_that_is_not_there(specrun: Specrun) -> None:
    specrun("generate", "--main-gpu", "40", "--split-mode", "none", "x").assert_fails(2, "--main-gpu must be between 0")
    specrun("generate", "--tensor-split", "1," * 40 + "1", "x").assert_fails(2, "one share for each GPU")


def test_matrices_that_the_backend_cannot_divide(specrun: Specrun, gpu: Device) -> None:
    if gpu.name not in devices.without_split_buffers(None):
        pytest.skip(f"{gpu.backend} divides matrices")
    specrun("generate", "-ngl", "2", "--split-mode", "row", "x").assert_fails(2, "--split-mode row is not possible")
