"""The devices that llama.cpp can compute on, and what it was compiled with."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp

from specrun.hardware.machine import RPC, Device, DeviceKind, Machine, offload_devices
from specrun.llama import library, rpc_servers
from specrun.llama.ggml import ggml

# enum ggml_backend_dev_type in ggml-backend.h
_KINDS: tuple[DeviceKind, ...] = ("CPU", "GPU", "IGPU", "ACCEL", "META")
_HOST_BUFFER = 1  # index of this capability


class _Properties(ctypes.Structure):
    """struct ggml_backend_dev_props in ggml-backend.h, with space for fields that later versions may append."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_byte * 128),  # bools, in the order of ggml_backend_dev_caps
    )


def devices(servers: Sequence[str] | None = None) -> list[Device]:
    """Every device of every backend in llama.cpp's order, with its current free memory.

    servers: RPC servers, HOST:PORT, whose devices are among them. Raises the errors of `rpc_servers.add`.
    """
    return [device for device, _ in _known(servers or ())]


def this_machine(servers: Sequence[str] | None = None, model_path: Path | None = None) -> Machine:
    """This machine as it is now, with the devices of those servers. model_path: the file whose storage is measured."""
    return Machine.read(devices(servers), system_info(), library.identity(), model_path)


def offload_handles(servers: Sequence[str] | None) -> list[int]:
    """C pointers to the devices that layers may lie on, in the order of `offload_devices`. servers: as in `devices`."""
    known = _known(servers or ())
    chosen = offload_devices(device for device, _ in known)
    return [next(handle for device, handle in known if device is one) for one in chosen]


def without_split_buffers(servers: Sequence[str] | None) -> list[str]:
    """Names of the devices that layers may lie on whose backend cannot divide a matrix among devices.

    llama.cpp refuses the split mode `row` for them. servers: as in `devices`.
    """
    known = _known(servers or ())
    chosen = offload_devices(device for device, _ in known)
    return [device.name for device, handle in known if device in chosen and not _divides(handle)]


def _divides(handle: int) -> bool:
    backend = ggml.ggml_backend_dev_backend_reg(handle)
    return bool(ggml.ggml_backend_reg_get_proc_address(backend, b"ggml_backend_split_buffer_type"))


def _known(servers: Sequence[str]) -> list[tuple[Device, int]]:
    """Devices with their C pointers. Servers that were added for another model of this process are left out."""
    library.start()
    rpc_servers.add(servers)
    handles = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    others = rpc_servers.added().difference(servers)
    return [(_device(handle), handle) for handle in handles if not (others and _server(handle) in others)]


def _server(handle: int) -> str | None:
    """HOST:PORT of the RPC server that has this device; None for a device of this machine. The server is not asked."""
    return _text(ggml.ggml_backend_dev_description(handle)) if _backend(handle) == RPC else None


def _backend(handle: int) -> str:
    return _text(ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(handle)))


def _device(handle: int) -> Device:
    properties = _Properties()
    ggml.ggml_backend_dev_get_props(handle, ctypes.byref(properties))
    return Device(
        name=_text(properties.name),
        description=_text(properties.description),
        kind=_KINDS[properties.type] if properties.type < len(_KINDS) else "unknown",
        backend=_backend(handle),
        free_bytes=properties.memory_free,
        total_bytes=properties.memory_total,
        id=_text(properties.device_id) or None,
        pins=bool(properties.capabilities[_HOST_BUFFER]),
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", errors="replace")


def cpu_buffer_type() -> int:
    """Handle of the buffer type for tensors in plain RAM."""
    return int(ggml.ggml_backend_cpu_buffer_type())


def system_info() -> str:
    """llama.cpp's line about the features of its backends; `specrun.hardware.cpu` parses it."""
    library.start()
    return str(llama_cpp.llama_print_system_info().decode("utf-8", errors="replace"))
