"""Renders the Jinja chat template of a GGUF file in a sandbox, as Hugging Face's transformers does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn, TypedDict

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specrun.errors import ModelFileError

_ADVICE = "`specrun generate --raw` does without it"


class Message(TypedDict):
    """One turn of a conversation."""

    role: str  # system, user or assistant
    content: str


class ChatTemplate:
    """Renders messages to a prompt in the format that a model was trained on."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        """source: the template. bos, eos: texts of these tokens. Raises ModelFileError if it is not valid Jinja."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        self._specials: dict[str, Any] = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelFileError(f"the model's chat template is broken ({_one_line(error)}); {_ADVICE}") from error

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The text of a conversation; with `add_generation_prompt`, up to where the assistant's answer begins.

        Raises ModelFileError if the template fails or refuses the messages.
        """
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self._specials
            )
        except Exception as error:  # a template is a program: it may fail in any way
            raise ModelFileError(f"the model's chat template failed ({_one_line(error)}); {_ADVICE}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
