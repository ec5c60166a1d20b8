"""This machine and its devices as values, and what measurements on it depend on."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from specrun.display_text import size_text
from specrun.hardware.cpu import Cpu
from specrun.hardware.memory import Memory, kernel_text
from specrun.hardware.storage import Storage

_MEMORY_STEP = 2**28  # RAM is compared in units of 256 MiB, as kernel versions reserve slightly different amounts
_NVIDIA, _DISPLAY = 0x10DE, 0x03  # a vendor, and the first byte of a class, on the PCI bus
_NVIDIA_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.[\d.]+)")
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


@dataclass(frozen=True)
class Machine:
    """Everything about a machine and its llama.cpp that decides how fast a pair runs. What is free is so now."""

    system: str  # e.g. `Linux`
    architecture: str  # e.g. `x86_64`
    release: str  # of the kernel
    cpu: Cpu
    memory: Memory
    devices: tuple[Device, ...]  # all devices of llama.cpp
    llama: dict[str, str]  # which build of llama.cpp: `specrun.llama.library.identity`
    driver: str | None = None  # of the GPU, e.g. `nvidia 550.54.14`; None if unknown
    storage: Storage | None = None  # that the model file lies on; None without a model file

    @classmethod
    def read(
        cls, devices: Sequence[Device], system_info: str, llama: Mapping[str, str], model_path: Path | None = None
    ) -> Machine:
        """Read this machine, and measure a model file's storage. The others are what `specrun.llama` says."""
        return cls(
            system=platform.system(),
            architecture=platform.machine(),
            release=platform.release(),
            cpu=Cpu.read(system_info),
            memory=Memory.read(),
            devices=tuple(devices),
            llama=dict(llama),
            driver=gpu_driver(),
            storage=Storage.read(model_path) if model_path else None,
        )

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The devices that llama.cpp divides layers among."""
        return offload_devices(self.devices)


def nvidia_card(root: Path = Path("/")) -> bool:
    """Whether this machine has an NVIDIA GPU, with or without its driver, by the files below `root`."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        with suppress(OSError, ValueError):
            vendor, kind = (int((device / name).read_text("utf-8"), 16) for name in ("vendor", "class"))
            if vendor == _NVIDIA and kind >> 16 == _DISPLAY:
                return True
    return False


def gpu_driver(root: Path = Path("/")) -> str | None:
    """Name and version of the GPU's kernel driver, from the files below `root`; None if they do not say."""
    if match := _NVIDIA_VERSION.search(kernel_text(root / "proc/driver/nvidia/version")):
        return f"nvidia {match[1]}"
    version = kernel_text(root / "sys/module/amdgpu/version").strip()
    return f"amdgpu {version}" if version else None


def surroundings(machine: Machine) -> dict[str, Any]:
    """What a measurement on this machine depends on besides its subject, by name, so that what has changed can be said.

    It stays the same between runs: no free memory, no measured bandwidth.
    """
    # Through JSON and back, so that the result equals a result that was saved and loaded.
    values = json.loads(json.dumps(asdict(machine)))
    del values["release"], values["memory"]
    if machine.cpu.quota is None:
        del values["cpu"]["quota"]
    devices = values.pop("devices")
    for device in devices:
        del device["free_bytes"], device["pins"]
        if device["kind"] == "CPU":
            del device["total_bytes"]
    if machine.storage:
        del values["storage"]["bytes_per_second"]
    ram = machine.memory.total_bytes // _MEMORY_STEP
    named = {"memory": ram, "devices": devices, "driver": values.pop("driver"), **values.pop("llama")}
    return {**named, "machine": values}
