"""Who may ask: the key, the Host header, and pages of other sites."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from specrun.serving.refusals import Access, is_loopback
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
        ({"Authorization": b"bearer  " + KEY.encode()}, 200),
        ({"Authorization": "Bearer none", "X-Api-Key": KEY.encode()}, 200),
        ({"Authorization": b"Bearer " + KEY.encode(), "X-Api-Key": "none"}, 200),
        ({"Authorization": b"Basic " + KEY.encode()}, 401),
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
    [
        ("localhost:99", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("a.localhost", 200),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("[x", 403),
    ],
)
def test_only_names_of_this_machine_are_answered_on_loopback(server: Server, host: str, status: int) -> None:
    assert server.client.get("/health", headers={"Host": host}).status_code == status


FROM_HERE = [
    "http://localhost:3000",
    "https://127.0.0.1",
    "http://[::1]:5173",
    "http://tauri.localhost",
    "app://obsidian.md",
    "tauri://localhost",
    "vscode-webview://0abc",
]
FROM_ELSEWHERE = [
    ALLOWED,
    "https://evil.example",
    "http://localhost.evil.example",
    "http://192.168.1.5:3000",
    "http://[x",
]


def preflight(server: Server, origin: str, **headers: str) -> httpx2.Response:
    """What a browser asks before it lets a page send JSON and a key."""
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type, authorization"}
    return server.client.options("/v1/chat/completions", headers={"Origin": origin, **wanted, **headers})


@pytest.mark.parametrize("origin", FROM_HERE)
def test_pages_of_this_machine_may_ask_and_read(guarded: Server, origin: str) -> None:
    response = preflight(guarded, origin)
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, origin)
    assert "authorization" in response.headers["access-control-allow-headers"]
    answer = guarded.client.get("/health", headers={"Origin": origin})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
    assert "Origin" in answer.headers["vary"]
    # Errors can be read too, or the page could not say that a key is missing.
    refused = guarded.client.get("/v1/models", headers={"Origin": origin})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, origin)


@pytest.mark.parametrize("origin", [*FROM_ELSEWHERE, "null"])
def test_pages_from_elsewhere_may_not_ask(server: Server, origin: str) -> None:
    for response in (preflight(server, origin), server.client.get("/health", headers={"Origin": origin})):
        assert response.status_code in (400, 403)
        assert "access-control-allow-origin" not in response.headers


def test_a_name_that_is_let_point_here_makes_no_page_local(server: Server) -> None:
    rebound = {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}
    assert "access-control-allow-origin" not in preflight(server, rebound["Origin"], Host=rebound["Host"]).headers
    for headers in (rebound, {"Host": rebound["Host"]}):  # browsers send no Origin with a GET to the same site
        assert server.client.get("/v1/models", headers=headers).status_code == 403
        assert server.client.post("/tokenize", headers=headers, json={"content": "x"}).status_code == 403


def test_extensions_of_the_browser_may_ask_as_far_as_it_lets_them(server: Server) -> None:
    response = server.client.get("/health", headers={"Origin": "chrome-extension://abc"})
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


def test_a_site_that_is_allowed_may_read_answers(guarded: Server) -> None:
    wanted = {"Origin": ALLOWED, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
    response = guarded.client.options("/v1/chat/completions", headers=wanted)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == ALLOWED
    assert guarded.client.get("/health", headers={"Origin": "https://evil.example"}).status_code == 403


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("192.168.1.5", False), ("x", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
