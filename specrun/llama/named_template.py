"""llama.cpp's own chat templates, which have names, such as chatml and llama3."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import llama_cpp

from specrun.errors import ModelFileError, PromptError
from specrun.llama.chat_template import ADVICE, Message
from specrun.locations import encode

_FIRST_PRIVATE = 0xE000  # of the characters that Unicode leaves to everybody

CHATML = "chatml"  # what a model without a template of its own gets, as in llama-server


def names() -> list[str]:
    """The names that llama.cpp knows, in its order."""
    n = llama_cpp.llama_chat_builtin_templates(None, 0)
    found = (ctypes.c_char_p * n)()
    llama_cpp.llama_chat_builtin_templates(found, n)
    return [name.decode() for name in found if name]


def recognized(template: str) -> str | None:
    """The name of llama.cpp's template for the format of `template`, in whatever language that is; None if it has none.

    llama.cpp tells formats apart by the marks around messages, which stand in a template literally.
    """
    turns: list[Message] = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]

    def rendered(template: str) -> str | None:
        with suppress(ModelFileError):
            return NamedTemplate(template).render(turns)
        return None

    text = rendered(template)
    return next((name for name in names() if rendered(name) == text), None) if text else None


class NamedTemplate:
    """Renders messages as `ChatTemplate` does, in a format that llama.cpp has in its code. It shows no tools.

    source: empty, as there is no Jinja text that could tell how a model calls tools or marks its reasoning.
    """

    source = ""

    def __init__(self, name: str) -> None:
        """name: one of `names()`."""
        self._name = name.encode()

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),  # noqa: ARG002
        variables: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> str:
        """As `ChatTemplate.render`. Raises ModelFileError if llama.cpp refuses the messages, PromptError for messages
        that are not UTF-8.
        """
        # llama.cpp takes C strings, which end at a NUL; a character that no message has stands for it meanwhile.
        written = "".join(message["content"] for message in messages)
        nul = next(char for char in map(chr, range(_FIRST_PRIVATE, sys.maxunicode)) if char not in written)
        turns = [
            llama_cpp.llama_chat_message(
                message["role"].encode(), encode(message["content"].replace("\0", nul), "the message", PromptError)
            )
            for message in messages
        ]
        chat = (llama_cpp.llama_chat_message * len(turns))(*turns)
        given = self._name, chat, len(turns), add_generation_prompt
        n = llama_cpp.llama_chat_apply_template(*given, None, 0)
        if n < 0:
            raise ModelFileError(
                f"llama.cpp's chat template {self._name.decode()} does not take these messages; {ADVICE}"
            )
        buffer = ctypes.create_string_buffer(n)
        llama_cpp.llama_chat_apply_template(*given, buffer, n)
        return buffer.raw.decode().replace(nul, "\0")
