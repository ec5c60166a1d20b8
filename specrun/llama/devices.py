"""The devices that llama.cpp can compute on, and what it was compiled with.

On other machines llama.cpp's rpc-server runs: its devices hold layers as GPUs of this machine do. llama.cpp ends the
process where a server cannot be reached, speaks another version or goes away. So each is asked first here, and what
happens later ends in one line (`library`). Nothing that is sent is encrypted, and a server does whatever it is told,
so servers belong into networks that are trusted.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import llama_cpp

from specrun.errors import LlamaError, UsageError
from specrun.hardware.machine import RPC, Device, DeviceKind, Machine, offload_devices
from specrun.llama import library
from specrun.llama.shared_library import ggml

# enum ggml_backend_dev_type in ggml-backend.h
_KINDS: tuple[DeviceKind, ...] = ("CPU", "GPU", "IGPU", "ACCEL", "META")
_HOST_BUFFER = 1  # index of this capability

# To wait for an answer, a hundred round trips of a slow network: a server that no other program holds answers at once.
_SECONDS = 5.0
_SECONDS_TO_CONNECT = 1.0  # to ask whether a server is still there
_TRIES, _SECONDS_BETWEEN = 5, 0.1  # of asking
_HELLO, _CAPABILITIES = 14, 24  # ggml-rpc.cpp: the first command of every connection, and the bytes of its request
_VERSIONED = 4  # bytes of an answer before the capabilities: major, minor, patch, padding

_servers: set[str] = set()  # those whose devices llama.cpp knows in this process, whichever model they were added for


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

    servers: RPC servers, HOST:PORT, whose devices are among them. Raises UsageError if this llama.cpp was built without
    its RPC backend, LlamaError for a server that is not there.
    """
    return [device for device, _ in _known(servers)]


def this_machine(servers: Sequence[str] | None = None, model_path: Path | None = None) -> Machine:
    """This machine as it is now, with the devices of those servers. model_path: the file whose storage is measured."""
    return Machine.read(devices(servers), system_info(), library.identity(), model_path)


def has_servers() -> bool:
    """Whether llama.cpp knows devices of RPC servers in this process, whichever model they were added for."""
    return bool(_servers)


def offload_handles(servers: Sequence[str] | None) -> list[int]:
    """C pointers to the devices that layers may lie on, in the order of `offload_devices`. servers: as in `devices`."""
    return [handle for _, handle in _for_layers(servers)]


def without_split_buffers(servers: Sequence[str] | None) -> list[str]:
    """Names of the devices that layers may lie on whose backend cannot divide a matrix among devices.

    llama.cpp refuses the split mode `row` for them. servers: as in `devices`.
    """
    return [device.name for device, handle in _for_layers(servers) if not _divides(handle)]


def _divides(handle: int) -> bool:
    backend = ggml.ggml_backend_dev_backend_reg(handle)
    return bool(ggml.ggml_backend_reg_get_proc_address(backend, b"ggml_backend_split_buffer_type"))


def _for_layers(servers: Sequence[str] | None) -> list[tuple[Device, int]]:
    known = _known(servers)
    chosen = offload_devices(device for device, _ in known)
    return [next(pair for pair in known if pair[0] is device) for device in chosen]


def _known(servers: Sequence[str] | None) -> list[tuple[Device, int]]:
    """Devices with their C pointers. Servers that were added for another model of this process are left out."""
    library.start()
    for server in servers or ():
        _add(server)
    handles = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    others = _servers.difference(servers or ())
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


def system_info() -> str:
    """llama.cpp's line about the features of its backends; `specrun.hardware.cpu` parses it."""
    library.start()
    return str(llama_cpp.llama_print_system_info().decode("utf-8", errors="replace"))


def _add(server: str) -> None:
    """Let llama.cpp know the devices of a server, if it does not yet."""
    if server in _servers:
        return
    backend = ggml.ggml_backend_reg_by_name(b"RPC")
    if not backend:
        raise UsageError(
            "--rpc: this llama.cpp was built without its RPC backend; install llama-cpp-python again with "
            "CMAKE_ARGS=-DGGML_RPC=on in the environment (docs/installing.md)"
        )
    greet(server)
    address = ggml.ggml_backend_reg_get_proc_address(backend, b"ggml_backend_rpc_add_server")
    add_server = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    library.explain_aborts("ggml-rpc.cpp", _lost)
    registry = add_server(server.encode())
    if not registry:
        raise LlamaError(f"the RPC server {server} has no device to compute on; start it with another --device")
    ggml.ggml_backend_register(registry)
    _servers.add(server)


def greet(server: str) -> None:
    """Ask a server whether it is one, as llama.cpp will do. Raises LlamaError."""
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_SECONDS) as connection:
            connection.sendall(struct.pack("<BQ", _HELLO, _CAPABILITIES) + bytes(_CAPABILITIES))
            with connection.makefile("rb") as answers:
                answer = answers.read(8 + _VERSIONED + _CAPABILITIES)
    except TimeoutError as error:
        raise LlamaError(
            f"the RPC server {server} does not answer; it serves one program at a time, and a firewall may be between"
        ) from error
    except OSError as error:
        raise LlamaError(
            f"the RPC server {server} cannot be reached ({error.strerror or error}); start it there: "
            f"`ggml-rpc-server --host ADDRESS --port {port}`"
        ) from error
    if len(answer) < 8 + _VERSIONED or struct.unpack_from("<Q", answer)[0] != _VERSIONED + _CAPABILITIES:
        raise LlamaError(f"{server} is no RPC server of llama.cpp as new as this one ({library.build()}); check both")


def _lost(assertion: str) -> str:
    """Why llama.cpp gave up. It does not say which server went away, so they are tried."""
    if "handshake failed" in assertion:
        server = assertion.rpartition(" ")[2]
        return f"{server} speaks another version of the RPC protocol; run the same release of llama.cpp there and here"
    servers = sorted(_servers)
    gone: list[str] = []
    for _ in range(_TRIES):  # a process that ends closes its connections one by one
        gone = gone or [server for server in servers if not _is_there(server)]
        time.sleep(0 if gone else _SECONDS_BETWEEN)
    names = ", ".join(gone or servers)
    return f"the connection to the RPC server {names} broke; start it again there, and then the same command here"


def _is_there(server: str) -> bool:
    host, _, port = server.rpartition(":")
    with suppress(OSError):
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_CONNECT).close()
        return True
    return False
