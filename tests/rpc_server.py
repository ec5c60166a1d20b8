"""llama.cpp's RPC server on the CPU of this machine, as `ggml-rpc-server` runs it.

    python -m tests.rpc_server PORT [BYTES]

BYTES: how much more memory it can take than it has when it starts, though it reports all of the machine's.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

_CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU
_PAGE = 4096


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    address: str  # HOST:PORT
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """As if its machine had lost power."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def serving(most_bytes: int | None = None) -> Iterator[Server]:
    """A server that ends with the block. most_bytes: what it can take of the memory that it reports."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.rpc_server", str(port), *([str(most_bytes)] if most_bytes else [])]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _listens(port), "the RPC server starts")
            yield Server(f"127.0.0.1:{port}", process)
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _serve(port: str, most_bytes: str = "") -> None:
    from llama_cpp._ggml import libggml

    libggml.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    libggml.ggml_backend_reg_get_proc_address.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    libggml.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    libggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    backend = libggml.ggml_backend_reg_by_name(b"RPC")
    address = libggml.ggml_backend_reg_get_proc_address(backend, b"ggml_backend_rpc_start_server")
    start = ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    )(address)
    cpu = (ctypes.c_void_p * 1)(libggml.ggml_backend_dev_by_type(_CPU))
    if most_bytes:
        import resource

        now = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
        resource.setrlimit(resource.RLIMIT_AS, (now + int(most_bytes),) * 2)
    start(f"127.0.0.1:{port}".encode(), None, 1, 1, cpu)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
