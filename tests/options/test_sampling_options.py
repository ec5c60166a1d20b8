"""A sampling option is declared once: it arrives wherever sampling options are taken."""

from __future__ import annotations

import inspect
import os
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from specrun.bench import runner
from specrun.chat.commands import SETTINGS, ChatSettings
from specrun.cli import writing
from specrun.cli.app import app
from specrun.decoding.generation import Request, make_request
from specrun.errors import UsageError
from specrun.loading.model import Model
from specrun.options.sampling_options import (
    ChatSamplingOptions,
    SamplingOptions,
    TokenOptions,
    sampling_parameters,
    settled,
)
from specrun.sampling.adjustments import SamplingParameters, option_name
from specrun.verifying import verifier
from tests.conftest import SpecrunHere

# A value of each kind of field that differs from the default, as the command line has it and as it arrives.
GIVEN: dict[str, tuple[str, Any]] = {
    "temperature": ("0.5", 0.5),
    "top_k": ("7", 7),
    "top_p": ("0.5", 0.5),
    "min_p": ("0.25", 0.25),
    "repeat_penalty": ("1.5", 1.5),
    "presence_penalty": ("0.5", 0.5),
    "frequency_penalty": ("0.25", 0.25),
    "repeat_last_n": ("9", 9),
    "seed": ("11", 11),
    "logit_bias": ("5+1.5", ((5, 1.5),)),
}
FIELDS = [field.name for field in fields(SamplingParameters)]
COMMANDS = {"generate", "chat", "serve", "bench", "verify"}


def arguments() -> list[str]:
    return [part for name in FIELDS for part in (option_name(name), GIVEN[name][0])]


@pytest.fixture
def everything() -> SamplingParameters:
    return SamplingParameters(**{name: value for name, (_, value) in GIVEN.items()})


def test_every_field_is_tried() -> None:
    assert set(GIVEN) == set(FIELDS)
    defaults = SamplingParameters()
    assert all(getattr(defaults, name) != value for name, (_, value) in GIVEN.items())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_that_writes_has_every_option(name: str) -> None:
    command: Any = typer.main.get_command(app)
    options = {option for parameter in command.commands[name].params for option in parameter.opts}
    assert {option_name(field) for field in FIELDS} <= options


@pytest.mark.parametrize("name", ["generate", "bench", "verify"])
def test_every_option_arrives(
    here: SpecrunHere, script: Path, everything: SamplingParameters, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen: list[SamplingParameters] = []

    def kept(_model: object, settings: Any, *_: object) -> Any:
        seen.append(settings.sampling)
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "AnswerWriter", kept)
    monkeypatch.setattr(runner, "Bench", kept)
    monkeypatch.setattr(verifier, "Verifier", kept)
    prompt = ["x"] if name == "generate" else []
    here(name, *prompt, "-m", script, "-md", script, *arguments())
    assert seen == [everything]


def test_every_option_arrives_from_python(everything: SamplingParameters) -> None:
    values = {name: value for name, (_, value) in GIVEN.items() if name not in ("temperature", "logit_bias")}
    options = SamplingOptions(**values, temp=0.5, logit_bias={5: 1.5})  # type: ignore[arg-type]
    assert make_request(options).sampling == everything
    for method in (Model.generate, Model.stream, Model.chat):
        assert {option_name(name)[2:].replace("-", "_") for name in FIELDS} <= set(inspect.signature(method).parameters)


def test_every_option_can_be_set_in_a_chat(everything: SamplingParameters) -> None:
    session: Any = SimpleNamespace(request=Request([], SamplingParameters()))
    model: Any = SimpleNamespace(plans=None)
    settings = ChatSettings(model, session, "show")
    for name in FIELDS:
        assert option_name(name)[2:] in SETTINGS
        settings.change(option_name(name)[2:], GIVEN[name][0])
    assert session.request.sampling == everything


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("199+1e9", ((199, 1e6),)),
        ("199-1E-3", ((199, -1e-3),)),
        ("199+.5e1", ((199, 5.0),)),
        ("199-inf", ((199, -1e6),)),
        ("0+1e999", ((0, 1e6),)),
    ],
)
def test_a_bias_is_a_number_as_programs_write_it(text: str, pairs: tuple[tuple[int, float], ...]) -> None:
    assert settled("logit_bias", [text]) == pairs


@pytest.mark.parametrize("text", ["199", "199+", "+1", "9+e5", "9+nan", "9 + 1", "9+1e", "x+1", "1" * 19 + "+1"])
def test_what_is_no_bias_is_quoted(text: str) -> None:
    with pytest.raises(UsageError, match=r"must be a token id and a signed number, as 15043\+1.5; got ") as refused:
        settled("logit_bias", [text])
    assert str(refused.value).endswith(text)


@pytest.mark.parametrize("name", ["seed", "top_k", "repeat_last_n", "temperature", "repeat_penalty"])
@pytest.mark.parametrize(
    ("value", "quoted"),
    [(-(2**40), "-1099511627776"), (10**4000, "an integer of 13288 bits"), (-(10**4000), "an integer of 13288 bits")],
)
def test_an_integer_is_quoted_as_it_was_given(name: str, value: int, quoted: str) -> None:
    with pytest.raises(UsageError, match=f"{option_name(name)} must be .*; got {quoted}$"):
        SamplingParameters(**{name: value})  # type: ignore[arg-type]


def test_the_largest_seed(here: SpecrunHere, script: Path) -> None:
    command = ("generate", "x", "-m", script, "--speculate", "off", "--seed")
    assert here(*command, str(2**63 - 1)).code == 0
    refused = here(*command, str(2**64))
    refused.assert_fails(2, f"between 0 and {2**63 - 1} (-1 is a random one); got {2**64}")


@pytest.mark.parametrize(
    ("typed", "stop"),
    [
        (r"\n", "\n"),
        (r"\n\nQ:", "\n\nQ:"),
        (r"\t\r", "\t\r"),
        (r"\\n", r"\n"),
        (r"\'\"", "'\""),
        (r"\x7c\x7C", "||"),
        (r"\xc3\xa9", "é"),
        ("\\d \\x4 \\", "\\d \\x4 \\"),
        ("é\n", "é\n"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("name", ["-r", "--stop", "--reverse-prompt"])
def test_escapes_in_a_stop_text_mean_what_they_do_in_llama_cpp(name: str, typed: str, stop: str) -> None:
    command: Any = typer.main.get_command(app)
    context = command.commands["generate"].make_context("generate", ["x", name, typed, name, "end"])
    assert context.params["stop"] == [stop, "end"]


def test_a_stop_text_that_no_text_can_have_is_refused(here: SpecrunHere, script: Path) -> None:
    for typed in (r"\xff", os.fsdecode(b"\xff")):
        here("generate", "x", "-m", script, "--stop", typed).assert_fails(2, "--stop is not UTF-8")


def test_a_stop_text_that_is_empty_is_refused(here: SpecrunHere, script: Path) -> None:
    here("generate", "x", "-m", script, "--stop", "").assert_fails(2, "--stop is an empty text", "leave it out")


def test_only_the_seed_and_the_temperature_have_defaults_of_their_own() -> None:
    defaults = SamplingParameters()
    assert sampling_parameters(TokenOptions(), 0.8) == make_request(SamplingOptions()).sampling == defaults
    assert replace(make_request(ChatSamplingOptions()).sampling, seed=0) == defaults
