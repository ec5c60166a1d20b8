"""Token ids of prompts, with or without a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from specrun.errors import UsageError
from specrun.llama import named_template
from specrun.llama.chat_template import ChatTemplate
from specrun.llama.loaded_model import LlamaModel
from specrun.llama.named_template import NamedTemplate
from specrun.locations import decode, read_bytes

_LARGEST_TEMPLATE = 2**20  # bytes; models' own have some thousands


Template: TypeAlias = ChatTemplate | NamedTemplate


def given_template(choice: str) -> str:
    """What `--chat-template` stands for: the text of a Jinja file, or the name of a template of llama.cpp's.

    Raises UsageError for what is neither, and for a file that cannot be read.
    """
    names = named_template.names()
    if choice in names:
        return choice
    path = Path(choice)
    if not path.exists():
        raise UsageError(f"--chat-template {choice} is neither a file nor one of {', '.join(sorted(names))}")
    text = decode(read_bytes(path, UsageError, _LARGEST_TEMPLATE), choice, UsageError)
    if not text.strip():
        raise UsageError(f"{choice} is empty; give a file with a Jinja template")
    return text


def chat_template(model: LlamaModel) -> Template | None:
    """The chat template that the user gave, or the model file's own; None if there is none."""
    source = model.chat_template
    if not source:
        return None
    if source in named_template.names():
        return NamedTemplate(source)
    return ChatTemplate(source, model.special_token_text("bos"), model.special_token_text("eos"))


def prompt_tokens(model: LlamaModel, text: str) -> list[int]:
    """Token ids of a whole prompt. The model's BOS is added unless the text begins with it, as a template's may."""
    bos = model.special_token_text("bos")
    return model.tokenize(text, add_special=not (bos and text.startswith(bos)))


def template_of_chats(model: LlamaModel) -> Template:
    """The chat template; ChatML for a model without a template, as in llama-server."""
    return chat_template(model) or NamedTemplate(named_template.CHATML)


def single_turn_tokens(model: LlamaModel, text: str, template: Template | None) -> list[int]:
    """Token ids of `text` as the user's only message in the template; without a template, of `text` as it is."""
    return prompt_tokens(model, template.render([{"role": "user", "content": text}]) if template else text)
