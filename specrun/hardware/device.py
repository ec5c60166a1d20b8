"""A device that llama.cpp can compute on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["CPU", "GPU", "IGPU", "ACCEL", "META", "unknown"]


@dataclass(frozen=True)
class Device:
    """One ggml backend device. Memory in bytes, 0 where the backend does not say.

    name: `CUDA0`. description: the product. kind: GPU has memory of its own, IGPU shares the RAM, ACCEL helps the CPU.
    backend: whose it is, e.g. `CUDA`. id: of the hardware (its PCI address), None where the backend does not say.
    """

    name: str
    description: str
    kind: DeviceKind
    backend: str
    free_bytes: int
    total_bytes: int
    id: str | None = None


def offload_devices(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices that llama.cpp divides layers among, in its order (llama_prepare_model_devices in its llama.cpp).

    RPC servers, then GPUs, one backend for each; integrated GPUs, of one backend, where there is no other GPU.
    """
    servers: list[Device] = []
    gpus: list[Device] = []
    integrated: list[Device] = []
    for device in devices:
        if device.kind == "GPU" and device.backend == "RPC":
            servers.append(device)
        elif device.kind == "GPU" and not any(device.id and device.id == other.id for other in gpus):
            gpus.append(device)
        elif device.kind == "IGPU" and (not integrated or integrated[-1].backend == device.backend):
            integrated.append(device)
    return (*servers, *(gpus or integrated))
