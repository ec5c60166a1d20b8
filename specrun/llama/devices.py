"""The devices that llama.cpp can compute on, and what it was compiled with."""

from __future__ import annotations

import ctypes

import llama_cpp
from llama_cpp._ggml import libggml

from specrun.hardware.device import Device, DeviceKind
from specrun.llama import library

# enum ggml_backend_dev_type in ggml-backend.h
_KINDS: tuple[DeviceKind, ...] = ("CPU", "GPU", "IGPU", "ACCEL", "META")


class _Properties(ctypes.Structure):
    """struct ggml_backend_dev_props in ggml-backend.h, with space for fields that later versions may append."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_byte * 128),
    )


def devices() -> list[Device]:
    """Every device of every backend in llama.cpp's order, with its current free memory."""
    library.start()
    libggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    libggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    libggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    return [_device(libggml.ggml_backend_dev_get(i)) for i in range(libggml.ggml_backend_dev_count())]


def _device(handle: int) -> Device:
    libggml.ggml_backend_dev_get_props.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Properties)]
    libggml.ggml_backend_dev_get_props.restype = None
    libggml.ggml_backend_dev_backend_reg.argtypes = [ctypes.c_void_p]
    libggml.ggml_backend_dev_backend_reg.restype = ctypes.c_void_p
    libggml.ggml_backend_reg_name.argtypes = [ctypes.c_void_p]
    libggml.ggml_backend_reg_name.restype = ctypes.c_char_p
    properties = _Properties()
    libggml.ggml_backend_dev_get_props(handle, ctypes.byref(properties))
    return Device(
        name=_text(properties.name),
        description=_text(properties.description),
        kind=_KINDS[properties.type] if properties.type < len(_KINDS) else "unknown",
        backend=_text(libggml.ggml_backend_reg_name(libggml.ggml_backend_dev_backend_reg(handle))),
        free_bytes=properties.memory_free,
        total_bytes=properties.memory_total,
        id=_text(properties.device_id) or None,
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", errors="replace")


def cpu_buffer_type() -> int:
    """Handle of the buffer type for tensors in plain RAM."""
    libggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
    return int(libggml.ggml_backend_cpu_buffer_type())


def system_info() -> str:
    """llama.cpp's line about the features of its backends; `specrun.hardware.cpu` parses it."""
    library.start()
    return str(llama_cpp.llama_print_system_info().decode("utf-8", errors="replace"))
