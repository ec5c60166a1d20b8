"""Token ids of prompts, with or without a chat template."""

from __future__ import annotations

from specrun.llama.chat_template import ChatTemplate
from specrun.llama.loaded_model import LlamaModel


def chat_template(model: LlamaModel) -> ChatTemplate | None:
    """The model file's own chat template, or None if it has none."""
    source = model.chat_template
    if not source:
        return None
    return ChatTemplate(source, model.special_token_text("bos"), model.special_token_text("eos"))


def prompt_tokens(model: LlamaModel, text: str) -> list[int]:
    """Token ids of a whole prompt. The model's BOS is added unless the text begins with it, as a template's may."""
    bos = model.special_token_text("bos")
    return model.tokenize(text, add_special=not (bos and text.startswith(bos)))


def single_turn_tokens(model: LlamaModel, text: str, template: ChatTemplate | None) -> list[int]:
    """Token ids of `text` as the user's only message in the template; without a template, of `text` as it is."""
    return prompt_tokens(model, template.render([{"role": "user", "content": text}]) if template else text)
