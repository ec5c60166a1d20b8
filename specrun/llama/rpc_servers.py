"""Other machines on which llama.cpp's rpc-server runs: their devices hold layers as GPUs of this machine do.

llama.cpp ends the process where a server cannot be reached, speaks another version or goes away. So each is asked first
here, and what happens later ends in one line (`library`). Nothing that is sent is encrypted, and a server does whatever
it is told: they belong into networks that are trusted.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from specrun.errors import LlamaError, UsageError
from specrun.llama import library
from specrun.llama.ggml import ggml

# To wait for an answer, a hundred round trips of a slow network: a server that no other program holds answers at once.
_SECONDS = 5.0
_SECONDS_TO_CONNECT = 1.0  # to ask whether a server is still there
_TRIES, _SECONDS_BETWEEN = 5, 0.1  # of asking
_HELLO, _CAPABILITIES = 14, 24  # ggml-rpc.cpp: the first command of every connection, and the bytes of its request
_VERSIONED = 4  # bytes of an answer before the capabilities: major, minor, patch, padding

_added: set[str] = set()  # servers whose devices llama.cpp knows in this process


def add(servers: Sequence[str]) -> None:
    """Let llama.cpp know the devices of these servers, each HOST:PORT. Those that it knows are left as they are.

    Raises UsageError if this llama.cpp was built without its RPC backend, LlamaError for a server that is not there.
    """
    for server in [server for server in servers if server not in _added]:
        library.start()
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
        _added.add(server)


def added() -> frozenset[str]:
    """The servers whose devices llama.cpp knows in this process, whichever model they were added for."""
    return frozenset(_added)


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
    servers = sorted(_added)
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
