"""The public Python API on the embedded pair: what `specrun.load` gives."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import specrun
from specrun.catalog import embedded
from specrun.decoding.generation import Request
from specrun.options.sampling_options import SamplingOptions
from tests.conftest import SCRIPT_TEXT

PROMPT = "def read_config(path):"


@pytest.fixture(scope="module")
def model() -> Iterator[specrun.Model]:
    with specrun.load(threads=1, ctx_size=512) as loaded:
        yield loaded


def test_it_generates_and_streams_the_same_text_for_a_seed(model: specrun.Model) -> None:
    whole = model.generate(PROMPT, max_tokens=24, seed=5)
    assert isinstance(whole, specrun.Completion)
    assert len(whole.token_ids) == 24
    assert whole.finish_reason == "length"
    assert "".join(model.stream(PROMPT, max_tokens=24, seed=5)) == whole.text
    assert model.generate(PROMPT, max_tokens=24, seed=6).text != whole.text


def test_a_bias_forbids_a_token(model: specrun.Model) -> None:
    first = model.generate(PROMPT, max_tokens=1, temp=0).token_ids[0]
    for bias in ({first: -100}, [f"{first}-inf"]):
        assert first not in model.generate(PROMPT, max_tokens=24, temp=0, logit_bias=bias).token_ids


@pytest.mark.slow
def test_every_way_of_speculating_writes_the_same_text(model: specrun.Model) -> None:
    expected = model.generate(PROMPT, max_tokens=32, temp=0).text
    for speculate in ("off", "chain", "tree"):
        with specrun.load(threads=1, ctx_size=512, speculate=speculate) as other:
            assert other.generate(PROMPT, max_tokens=32, temp=0).text == expected


def test_statistics_belong_to_their_completion(model: specrun.Model) -> None:
    first = model.generate(PROMPT, max_tokens=12)
    passes = first.statistics.passes
    model.generate(PROMPT, max_tokens=40)
    assert first.statistics.completion_tokens == 12
    assert first.statistics.passes == passes > 0
    assert first.statistics.tokens_per_second > 0


def test_chat_keeps_the_conversation(script: Path) -> None:
    with specrun.load(script, draft="none", threads=1) as model:
        session = model.chat(system="be brief", seed=1)
        assert isinstance(session, specrun.Session)
        assert session.ask("hello").text == SCRIPT_TEXT
        assert "".join(session.stream("again")) == SCRIPT_TEXT
        roles = [message["role"] for message in session.messages]
        assert roles == ["system", "user", "assistant", "user", "assistant"]


def test_a_system_message_goes_into_the_template(script: Path) -> None:
    with specrun.load(script, draft="none", threads=1) as model:
        written = model.generate("hello", system="be brief", max_tokens=1)
        asked = model.chat(system="be brief", max_tokens=1).ask("hello")
        assert written.request.prompt == asked.request.prompt != model.prompt_tokens("hello")
        with pytest.raises(specrun.UsageError, match="chat template"):
            model.generate("hello", system="be brief", raw=True)


@pytest.mark.slow
def test_grammars_without_end_leave_the_latest_ones_only(model: specrun.Model) -> None:
    prompt = model.prompt_tokens(PROMPT)
    for i in [*range(20), 0]:
        assert model.complete(Request(prompt, gbnf=f'root ::= "{i}"')).run().text == str(i)
    assert len(model._grammars._kept) == 16


@pytest.mark.slow
def test_the_command_writes_the_same(model: specrun.Model) -> None:
    command = [sys.executable, "-m", "specrun", "generate", PROMPT, "-n", "24", "-t", "1", "-c", "512", "--temp", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == model.generate(PROMPT, max_tokens=24, temp=0).text.removesuffix("\n") + "\n"


def test_generate_shows_the_options_of_the_command(model: specrun.Model) -> None:
    parameters = inspect.signature(model.generate).parameters
    assert {field: parameters[field].default for field in ("temp", "top_k", "seed")} == {
        field: getattr(SamplingOptions(), field) for field in ("temp", "top_k", "seed")
    }


def test_mistakes_are_named(model: specrun.Model) -> None:
    with pytest.raises(TypeError, match="bugdet"):
        specrun.load(bugdet=3)
    with pytest.raises(TypeError, match="top_kk"):
        model.generate(PROMPT, top_kk=3)
    with pytest.raises(specrun.UsageError, match="--temp"):
        model.generate(PROMPT, temp=-1)
    with pytest.raises(specrun.UsageError, match="--draft needs a target"):
        specrun.load(draft=embedded.DRAFT)
    with pytest.raises(specrun.ModelFileError, match="nowhere"):
        specrun.load("nowhere.gguf", draft="none")


def test_everything_public_is_there_and_costs_nothing_before_it_is_used() -> None:
    for name in specrun.__all__:
        assert getattr(specrun, name) is not None
    program = "import sys, specrun; print({'llama_cpp', 'numpy', 'typer'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"
    )
