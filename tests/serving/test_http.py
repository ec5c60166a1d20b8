"""What programs send that speak HTTP in older or more careful ways than the usual clients."""

from __future__ import annotations

import json
import socket

import pytest

from tests.serving.running import CHAT, Server, messages
from tests.waiting import TIMEOUT_S


def connected(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def rest(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


@pytest.mark.parametrize("is_streamed", [False, True])
def test_http_1_0_is_answered_and_the_connection_ends(server: Server, is_streamed: bool) -> None:
    body = json.dumps({"messages": messages("x = ["), "max_tokens": 4, "stream": is_streamed}).encode()
    with connected(server) as connection:
        connection.sendall(
            f"POST {CHAT} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        head, _, answer = rest(connection).partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0].split(b" ")[1] == b"200"
    assert b"chunked" not in head, "HTTP/1.0 has no chunks"
    if is_streamed:
        assert answer.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(answer)["choices"]


def test_a_client_that_waits_to_be_told_to_go_on_is_told(server: Server) -> None:
    body = json.dumps({"messages": messages("x = ["), "max_tokens": 4}).encode()
    fields = f"Host: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: {len(body)}"
    with connected(server) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert rest(connection).startswith(b"HTTP/1.1 200 ")
