"""A device is asked whether it has a kernel of flash attention, without a model; here llama.cpp's CPU backend."""

from __future__ import annotations

import pytest

from specrun.llama import devices
from specrun.llama.parameters import has_flash
from specrun.llama_settings import CacheType


@pytest.mark.parametrize(("size", "kind"), [(32, "f16"), (36, "f16"), (128, "f16"), (32, "q8_0"), (128, "q8_0")])
def test_the_cpu_has_it_for_every_shape(size: int, kind: CacheType) -> None:
    (cpu,) = (handle for device, handle in devices._known(()) if device.kind == "CPU")
    assert has_flash(cpu, 8, 2, size, kind, kind)
