"""llama-server's own addresses: completions, filling gaps, templates and slots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx2
import pytest

from specrun import __version__
from specrun.llama import LlamaModel
from specrun.sampling import SamplingParameters
from specrun.serving.app import HttpServer, listening_socket, make_app, url
from specrun.serving.refusals import Access
from specrun.serving.service import JobQueue, Service
from specrun.speculation.method import OFF
from tests.models import TOKENS, random_llama, tokenizer
from tests.serving.running import CHAT, COMPLETIONS, GREEDY, NAME, Json, Server, messages, running
from tests.waiting import wait_until

PROMPT = "def read_config(path):"


def chunks(server: Server, path: str, body: Json) -> list[Json]:
    """The objects of a stream, which has no mark of its end."""
    with server.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_completion_has_llama_servers_shape(server: Server, path: str) -> None:
    answer = server.post(path, {"prompt": PROMPT, "n_predict": 12, "n_probs": 2, "return_tokens": True})
    same = server.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 12})
    assert answer["content"] == same["choices"][0]["text"]
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (answer["model"], answer["prompt"], answer["index"]) == (NAME, PROMPT, 0)
    assert (answer["tokens_predicted"], answer["truncated"]) == (12, False)
    assert answer["tokens_evaluated"] == same["usage"]["prompt_tokens"]
    assert server.post("/detokenize", {"tokens": answer["tokens"]})["content"] == answer["content"]
    assert [len(one["top_logprobs"]) for one in answer["completion_probabilities"]] == [2] * 12
    assert answer["generation_settings"]["n_predict"] == 12
    assert answer["timings"]["predicted_n"] == 12


def test_a_streamed_completion_brings_the_same(server: Server) -> None:
    body = {"prompt": PROMPT, "n_predict": 24, "stop": ["return"], "return_tokens": True, "n_probs": 1}
    whole, (*pieces, last) = server.post("/completion", body), chunks(server, "/completion", body)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert not any(piece["stop"] for piece in pieces)
    assert [token for piece in pieces for token in piece["tokens"]] == whole["tokens"]
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", whole["stop_type"])
    assert last["stopping_word"] == whole["stopping_word"]
    assert last["tokens_predicted"] == whole["tokens_predicted"]


def test_stop_texts_and_several_prompts(server: Server) -> None:
    stopped = server.post("/completion", {"prompt": PROMPT, "n_predict": 24, "stop": ["never", " "]})
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", " ")
    several: Any = server.client.post("/completion", json={"prompt": [PROMPT, "class"], "n_predict": 3}).json()
    assert [(one["index"], one["prompt"]) for one in several] == [(0, PROMPT), (1, "class")]


def test_a_prompt_is_read_in_advance(server: Server) -> None:
    prompt = "import os, sys, json, re, math\n" * 4
    read = server.post("/completion", {"prompt": prompt, "n_predict": 0, "max_tokens": 5})
    assert (read["content"], read["tokens"], read["tokens_predicted"]) == ("", [], 1)
    assert [piece["content"] for piece in chunks(server, "/completion", {"prompt": prompt, "n_predict": 0})][-1] == ""
    again = server.post("/completion", {"prompt": prompt, "n_predict": 2})
    assert again["tokens_cached"] > 20


@pytest.mark.parametrize("path", ["/completion", COMPLETIONS])
def test_a_completion_follows_a_schema_and_no_grammar(server: Server, path: str) -> None:
    schema = {"enum": ["left", "right"]}
    body = {"prompt": PROMPT, "json_schema": schema, "max_tokens": 24}
    answer = server.post(path, body)
    assert json.loads(answer["content"] if path == "/completion" else answer["choices"][0]["text"]) in schema["enum"]
    assert server.refused(path, {"prompt": PROMPT, "grammar": 'root ::= "a"'})[1]["param"] == "grammar"


def test_a_template_is_applied_as_for_an_answer(server: Server) -> None:
    text = server.post("/apply-template", {"messages": messages("hello", "yes", "why?")})["prompt"]
    answer = server.chat("hello", "yes", "why?", max_tokens=4)
    assert (
        server.post("/completion", {"prompt": text, "n_predict": 4})["content"]
        == answer["choices"][0]["message"]["content"]
    )
    assert server.post("/apply-template", {"messages": messages("hello", "Begun")})["prompt"].endswith("Begun")


@pytest.mark.slow
def test_slots_say_how_many_are_in_use(endless: Path) -> None:
    with running(endless, plan=OFF.plan(), ctx_size=16_384) as server:
        assert [slot["is_processing"] for slot in server.client.get("/slots").json()] == [False]
        body = {"messages": messages("x"), "max_tokens": 16_000, "stream": True}
        with server.client.stream("POST", CHAT, json=body) as response:
            wait_until(lambda: server.service.queue.n_running, "the answer is being written")
            (slot,) = server.client.get("/slots").json()
            assert (slot["id"], slot["n_ctx"], slot["is_processing"], slot["speculative"]) == (0, 16_384, True, False)
            assert server.client.get("/slots?fail_on_no_slot=1").status_code == 503
            response.close()
        server.wait_until_idle()


FILL, FILES = ("fim_pre", "fim_suf", "fim_mid"), ("fim_rep", "fim_sep")


def filling(path: Path, *kinds: str) -> Path:
    """A model whose last tokens are these, for filling gaps."""
    n_vocab = len(tokenizer()[TOKENS])
    ids = {f"tokenizer.ggml.{kind}_token_id": n_vocab + i for i, kind in enumerate(kinds)}
    return random_llama(path, vocab_extra=len(kinds), metadata=ids)


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(filling(tmp_path_factory.mktemp("fill") / "fill.gguf", *FILL), plan=OFF.plan()) as server:
        yield server


@pytest.mark.parametrize("kinds", [FILL, FILL + FILES])
def test_a_gap_is_put_between_the_models_tokens(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    with LlamaModel(filling(tmp_path / "model.gguf", *kinds)) as model:

        def text(*parts: str) -> list[int]:
            return [token for part in parts for token in model.tokenize(part, add_special=False)]

        pre, suf, mid, *others = range(model.n_vocab - len(kinds), model.n_vocab)
        gap = [pre, *text("ab"), suf, *text("cd"), mid, *text("h")]
        files = text("ef\n\n", "g\n\n")
        if others:
            rep, sep = others
            files = [rep, *text("project\n"), sep, *text("x.py\nef\n"), sep, *text("y.py\ng\n"), sep, *text("file\n")]
        assert model.infill_tokens("ab", "cd", [("x.py", "ef"), ("y.py", "g")], "h") == files + gap
        assert model.infill_tokens("", "") == [pre, suf, mid]


@pytest.mark.slow
def test_gaps_are_filled(filler: Server) -> None:
    body: Json = {"input_prefix": "a(", "input_suffix": ")", "n_predict": 6}
    answer = filler.post("/infill", body)
    assert answer["content"]
    assert answer["tokens_evaluated"] > 5
    assert "".join(piece["content"] for piece in chunks(filler, "/infill", body)) == answer["content"]
    by_suffix = filler.post(COMPLETIONS, {"prompt": "a(", "suffix": ")", "max_tokens": 6})
    assert by_suffix["choices"][0]["text"] == answer["content"]
    assert by_suffix["usage"]["prompt_tokens"] == answer["tokens_evaluated"]
    other = filler.post("/infill", {**body, "input_extra": [{"filename": "b.py", "text": "b"}]})
    assert other["tokens_evaluated"] > answer["tokens_evaluated"]
    for wrong, param in (
        ({"input_suffix": ""}, "input_prefix"),
        ({**body, "input_extra": [{}]}, "input_extra[0].text"),
    ):
        assert filler.refused("/infill", wrong)[1]["param"] == param


def test_a_model_without_such_tokens_says_so(server: Server) -> None:
    status, error = server.refused("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert (status, error["param"]) == (400, "input_suffix")
    assert "no tokens for filling a gap" in error["message"]


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
