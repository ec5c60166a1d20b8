"""A device that llama.cpp can compute on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from specrun.display_text import size_text

RPC = "RPC"  # the backend of devices on other machines
_SOFTWARE = "llvmpipe"  # Mesa's device that computes on the CPU; ggml-vulkan takes it for a GPU with memory of its own
DeviceKind = Literal["CPU", "GPU", "IGPU", "ACCEL", "META", "unknown"]


@dataclass(frozen=True)
class Device:
    """A ggml backend device."""

    name: str  # e.g. `CUDA0`
    description: str  # name of the product
    kind: DeviceKind  # a GPU has its own memory, an IGPU uses the RAM, an ACCEL assists the CPU
    backend: str  # e.g. `CUDA`
    free_bytes: int  # of its memory; 0 if the backend does not say
    total_bytes: int  # of its memory; 0 if the backend does not say
    id: str | None = None  # PCI address; None if the backend does not say
    pins: bool = False  # whether weights in RAM may lie in memory that it copies from at the full rate

    @property
    def is_remote(self) -> bool:
        """Whether it is the device of an RPC server, on another machine. Its description is HOST:PORT."""
        return self.backend == RPC

    @property
    def shares_ram(self) -> bool:
        """Whether what lies on it takes RAM."""
        return self.kind == "IGPU" or _SOFTWARE in self.description

    def __str__(self) -> str:
        """For people: name, product or address, and memory."""
        what = f"RPC server {self.description}" if self.is_remote else self.description
        memory = f", {size_text(self.free_bytes)} of {size_text(self.total_bytes)} free" if self.total_bytes else ""
        return f"{self.name}, {what}{memory}"


def offload_devices(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices that llama.cpp divides layers among, in its order (llama_prepare_model_devices in llama.cpp).

    These are the RPC servers and then the GPUs; a GPU that several backends offer is taken once. If there is no GPU,
    integrated GPUs of one backend are taken.
    """
    servers: list[Device] = []
    gpus: list[Device] = []
    integrated: list[Device] = []
    for device in devices:
        if device.kind == "GPU" and device.is_remote:
            servers.append(device)
        elif device.kind == "GPU" and not any(device.id and device.id == other.id for other in gpus):
            gpus.append(device)
        elif device.kind == "IGPU" and (not integrated or integrated[-1].backend == device.backend):
            integrated.append(device)
    return (*servers, *(gpus or integrated))
