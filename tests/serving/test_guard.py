"""Who may ask: the key, the Host header, and pages of other sites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specrun.serving.guard import Access, is_loopback
from tests.serving.running import Server, running

KEY = "sécret"
ALLOWED = "https://chat.example"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server that wants a key, and lets one site's pages ask."""
    with running(access=Access(KEY, only_local=True, origins=[ALLOWED])) as server:
        yield server


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": KEY.encode()}, 200),
        ({"Authorization": b"Bearer " + KEY.encode()}, 200),
        ({"X-Api-Key": KEY.encode()}, 200),
        ({"X-Api-Key": "wrong"}, 401),
    ],
    ids=str,
)
def test_the_key_is_asked_for(guarded: Server, headers: dict[str, str], status: int) -> None:
    response = guarded.client.get("/v1/models", headers=headers)
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert KEY not in response.text


def test_health_needs_no_key(guarded: Server) -> None:
    assert guarded.client.get("/health").status_code == 200
    assert guarded.client.get("/metrics").status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:99", 200), ("127.0.0.1", 200), ("[::1]:8080", 200), ("a.localhost", 200), ("evil.example:8080", 403)],
)
def test_only_names_of_this_machine_are_answered_on_loopback(server: Server, host: str, status: int) -> None:
    assert server.client.get("/health", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost:3000", 200),
        ("vscode-webview://abc", 200),
        (ALLOWED, 403),
    ],
)
def test_pages_of_other_sites_may_not_ask(server: Server, origin: str, status: int) -> None:
    response = server.client.get("/health", headers={"Origin": origin})
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers


def test_a_site_that_is_allowed_may_read_answers(guarded: Server) -> None:
    wanted = {"Origin": ALLOWED, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
    response = guarded.client.options("/v1/chat/completions", headers=wanted)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == ALLOWED
    assert guarded.client.get("/health", headers={"Origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("192.168.1.5", False), ("x", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
