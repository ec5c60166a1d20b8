"""The devices of llama.cpp: their memory, and whether a layer really runs there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specrun.display_text import size_text
from specrun.doctor.finding import Finding
from specrun.doctor.installation import REBUILD
from specrun.errors import LlamaError
from specrun.hardware.device import Device, offload_devices

_MUCH = 0.5  # of a GPU's memory; less of it free means that another program holds layers' places. Chosen by hand


def findings(devices: Sequence[Device], run_layer: Callable[[int | None], float]) -> list[Finding]:
    """A finding for each device. run_layer: `probe.run_layer`."""
    gpus = offload_devices(devices)
    return [_finding(device, gpus, run_layer) for device in devices]


def _finding(device: Device, gpus: Sequence[Device], run_layer: Callable[[int | None], float]) -> Finding:
    check, what = f"device {device.name}", _described(device)
    if device not in gpus and device.kind != "CPU":
        return Finding(check, "ok", f"{what}; llama.cpp puts no layers there")
    try:
        ms = run_layer(None if device.kind == "CPU" else gpus.index(device))
    except LlamaError as error:
        without = "" if device.kind == "CPU" else "update the driver, or run with `--gpu-layers 0`; else: "
        return Finding(check, "fail", f"{what}; a layer does not run there: {error}", without + REBUILD)
    what += f"; a layer runs there ({ms:.1f} ms)"
    if device.kind == "GPU" and device.free_bytes < _MUCH * device.total_bytes:
        see = "`nvidia-smi`" if device.backend == "CUDA" else "`nvtop`"
        return Finding(check, "warn", f"{what}; others hold most of its memory", f"end what {see} lists")
    return Finding(check, "ok", what)


def _described(device: Device) -> str:
    if device.kind == "CPU" or not device.total_bytes:
        return device.description  # its memory has a line of its own
    return f"{device.description}, {size_text(device.free_bytes)} of {size_text(device.total_bytes)} free"
