"""What the server says of itself and its model."""

from __future__ import annotations

from dataclasses import fields

import httpx2

from specrun import __version__
from specrun.sampling import SamplingParameters
from specrun.serving.app import make_app
from specrun.serving.http_server import Access, HttpServer, listening_socket, url
from specrun.serving.job import JobQueue
from specrun.serving.service import Service
from tests.serving.running import GREEDY, NAME, Server, messages


def test_health_is_ok_once_the_model_is_loaded(server: Server) -> None:
    response = server.client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_while_the_model_is_loaded_nothing_is_answered() -> None:
    failures: list[Exception] = []
    app = make_app(Service(JobQueue(1), GREEDY), Access(), failures.append)
    with listening_socket("127.0.0.1", 0) as bound, HttpServer(app, bound):
        for method, path in (("GET", "/health"), ("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
            response = httpx2.request(method, url("127.0.0.1", bound) + path, json={}, trust_env=False)
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert "loaded" in response.json()["error"]["message"]


def test_models_tells_the_context_and_capabilities(server: Server) -> None:
    answer = server.client.get("/v1/models").json()
    (model,) = answer["data"]
    assert (model["id"], model["object"]) == (NAME, "model")
    assert model["context_length"] == model["meta"]["n_ctx"] == 1024
    assert model["capabilities"] == ["completion", "chat"]
    assert answer["models"][0]["name"] == NAME


def test_a_model_is_found_by_its_name(server: Server) -> None:
    for path in (f"/v1/models/{NAME}", f"/models/{NAME}", f"/v1/models/{NAME}/"):
        assert server.client.get(path).json() == server.client.get("/v1/models").json()["data"][0]
    response = server.client.get("/v1/models/org/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert "org/other" in response.json()["error"]["message"]


def test_a_slash_too_many_does_not_redirect(server: Server) -> None:
    for path in ("/health", "/v1/models", "/props", "/metrics"):
        assert server.client.get(f"{path}/").status_code == 200
    assert server.post("/v1/chat/completions/", {"messages": messages("x"), "max_tokens": 2})["choices"]


def test_props_tell_what_a_request_gets(server: Server) -> None:
    props = server.client.get("/props").json()
    settings = props["default_generation_settings"]
    assert (settings["n_ctx"], settings["params"]["temperature"], settings["params"]["max_tokens"]) == (1024, 0, 24)
    assert set(settings["params"]) == {field.name for field in fields(SamplingParameters)} | {"max_tokens", "stop"}
    assert "messages" in props["chat_template"]
    assert props["build_info"] == f"specrun-{__version__}"


def test_tokens_and_back(server: Server) -> None:
    text = "def é(x):\n"
    tokens = server.post("/tokenize", {"content": text})["tokens"]
    assert server.post("/detokenize", {"tokens": tokens})["content"] == text
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True})["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    joined = b"".join(bytes(p) if isinstance(p, list) else p.encode() for p in (piece["piece"] for piece in pieces))
    assert joined.decode() == text
    for tokens in ([-1], [1, True], [False], [1.5]):
        status, error = server.refused("/detokenize", {"tokens": tokens})
        assert (status, error["param"]) == (400, "tokens")
    assert server.refused("/tokenize", {"content": 5})[0] == 400


def test_metrics_count_what_was_written(server: Server) -> None:
    def numbers() -> dict[str, float]:
        response = server.client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = [line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    before = numbers()
    answer = server.chat("def f(x):", max_tokens=24)
    after = numbers()
    assert after["specrun_completion_tokens_total"] == before["specrun_completion_tokens_total"] + 24
    n_prompt = answer["usage"]["prompt_tokens"]
    assert after["specrun_prompt_tokens_total"] == before["specrun_prompt_tokens_total"] + n_prompt
    n_accepted = answer["timings"]["draft_n_accepted"]
    assert after["specrun_passes_total"] == before["specrun_passes_total"] + 24 - n_accepted
    ended = 'specrun_answers_total{reason="length"}'
    assert after[ended] == before.get(ended, 0) + 1
    assert after["specrun_target_seconds_total"] > before["specrun_target_seconds_total"]
    assert (after["specrun_requests_processing"], after["specrun_requests_waiting"]) in ((0, 0), (1, 0))
