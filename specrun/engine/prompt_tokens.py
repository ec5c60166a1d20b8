"""From what a user wrote to the token ids of a prompt."""

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
    """Token ids of a whole prompt, with the BOS that the model wants unless the text (a template's) has it."""
    bos = model.special_token_text("bos")
    return model.tokenize(text, add_special=not (bos and text.startswith(bos)))


def single_turn_tokens(model: LlamaModel, text: str, template: ChatTemplate | None) -> list[int]:
    """Token ids of `text` as the user's only message, or as it is without a template."""
    return prompt_tokens(model, template.render([{"role": "user", "content": text}]) if template else text)
