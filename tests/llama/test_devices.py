"""What is asked of an RPC server before llama.cpp, which would end the process, talks to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specrun.errors import LlamaError
from specrun.llama import devices, library
from tests.conftest import SpecrunHere


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """The address of a server that says `answer` to whoever connects, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                if answer is None:
                    is_over.wait()
                else:
                    connection.sendall(answer)

        is_over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        is_over.set()
        thread.join()


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(LlamaError, match=r"127\.0\.0\.1:9 cannot be reached .*refused"):
        devices.greet("127.0.0.1:9")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x03" + bytes(7) + b"\x02\x00\x00"])
def test_a_server_of_another_kind(answer: bytes) -> None:
    with answering(answer) as address, pytest.raises(LlamaError, match="is no RPC server"):
        devices.greet(address)


def test_a_server_that_another_program_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_SECONDS", 0.1)
    with answering(None) as address, pytest.raises(LlamaError, match="does not answer; it serves one program"):
        devices.greet(address)


def test_a_build_without_rpc(here: SpecrunHere) -> None:
    if "RPC" in library.backends():
        pytest.skip("this llama.cpp has the RPC backend")
    here("generate", "--rpc", "127.0.0.1:9", "x").assert_fails(2, "without its RPC backend", "CMAKE_ARGS=-DGGML_RPC=on")


@pytest.mark.slow
def test_what_llama_cpp_says_before_it_gives_up() -> None:
    assert "10.0.0.2:50052 speaks another version" in devices._lost("550: RPC handshake failed for 10.0.0.2:50052")
    assert "broke; start it again" in devices._lost("35: Remote RPC server crashed or returned malformed response")
