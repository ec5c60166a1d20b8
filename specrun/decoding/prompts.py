"""What a model reads: messages in the form of its chat template, and the tokens of prompts.

Not every template has a system role, or takes texts as texts. What it takes shows in what it makes of known messages.
llama.cpp looks in the same way, and helps in the same way.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from specrun.decoding.prompt_states import PromptStates
from specrun.errors import ModelFileError, UsageError
from specrun.llama import LlamaModel
from specrun.llama.chat_template import ADVICE, CHATML, ChatTemplate, Message, NamedTemplate, template_names
from specrun.locations import decode, read_bytes
from specrun.reading.form import CHANNEL, MESSAGE, MESSAGE_END, START, THINKING, THINKING_END, answer_form

_LARGEST_TEMPLATE = 2**20  # bytes; models' own have some thousands
# No template has these digits, and none changes digits.
_SAID, _TOLD = "4815162342", "3141592653"
_USER: Message = {"role": "user", "content": _SAID}
_SYSTEM: Message = {"role": "system", "content": _TOLD}


class FittedTemplate:
    """Renders messages as a template does, in the form that it takes. source: the template's."""

    def __init__(self, template: ChatTemplate | NamedTemplate) -> None:
        self.source = template.source
        self._template = template

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation, up to where the assistant's answer begins. tools, variables: as `ChatTemplate`'s.

        Raises ModelFileError if the template fails, refuses the messages, or leaves out what the user says.
        """
        if any(message["role"] == "system" for message in messages) and not self.has_system_role:
            messages = _without_system_role(messages)
        return self._template.render(self._in_form(messages), tools=tools, variables=variables)

    @cached_property
    def has_system_role(self) -> bool:
        """Whether the template writes system messages. Gemma 2's refuses them, and some leave them out in silence."""
        if _TOLD in (self._written(self._in_form([_SYSTEM, _USER])) or ""):
            return True
        return self._written(self._in_form([_USER])) is None  # it refuses everything, and will say why

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether contents have to be lists of parts, as some templates want them that were made for images too."""
        text = self._written([_USER])
        if text is not None and _SAID in text:
            return False
        if _SAID in (self._written([_in_parts(_USER)]) or ""):
            return True
        if text is not None:
            raise ModelFileError(f"the chat template leaves out what the user says; {ADVICE}")
        return False

    def _in_form(self, messages: Sequence[Message]) -> Sequence[Message]:
        return [_in_parts(message) for message in messages] if self._wants_parts else messages

    def _written(self, messages: Sequence[Message]) -> str | None:
        """The text of some messages; None if the template refuses them."""
        try:
            return self._template.render(messages)
        except ModelFileError:
            return None


def _in_parts(message: Message) -> Any:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _without_system_role(messages: Sequence[Message]) -> list[Message]:
    """The messages with the texts of the system before what the user says next, as in Gemma's later templates."""
    fitted: list[Message] = []
    told: list[str] = []
    for message in messages:
        if message["role"] == "system":
            told.append(message["content"])
        elif message["role"] == "user" and told:
            fitted.append({"role": "user", "content": "\n\n".join([*told, message["content"]])})
            told = []
        else:
            fitted.append(message)
    return [*fitted, Message(role="user", content="\n\n".join(told))] if told else fitted


def given_template(choice: str) -> str:
    """What `--chat-template` stands for: the text of a Jinja file, or the name of a template of llama.cpp's.

    Raises UsageError for what is neither, and for a file that cannot be read.
    """
    names = template_names()
    if choice in names:
        return choice
    if not Path(choice).exists():
        raise UsageError(f"--chat-template {choice} is neither a file nor one of {', '.join(sorted(names))}")
    text = decode(read_bytes(Path(choice), UsageError, _LARGEST_TEMPLATE), choice, UsageError)
    if not text.strip():
        raise UsageError(f"{choice} is empty; give a file with a Jinja template")
    return text


def chat_template(model: LlamaModel) -> FittedTemplate | None:
    """The chat template that the user gave, or the model file's own; None if there is none."""
    source = model.chat_template
    if not source:
        return None
    if source in template_names():
        return FittedTemplate(NamedTemplate(source))
    return FittedTemplate(ChatTemplate(source, model.special_token_text("bos"), model.special_token_text("eos")))


def is_begun(messages: Sequence[Message]) -> bool:
    """Whether the last message is the beginning of the answer: the assistant's, and no call of a tool."""
    last = messages[-1]
    return last["role"] == "assistant" and not last.get("tool_calls")


class ChatFormat:
    """The format of a model. Raises ModelFileError for a broken chat template.

    A model without a template gets ChatML, as in llama-server.
    form: how the model marks the parts of its answers.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._template = chat_template(model) or FittedTemplate(NamedTemplate(CHATML))
        self.form = answer_form(self._template.source)

    def prompt(
        self,
        messages: Sequence[Message],
        thinks: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation, up to where the answer begins, or goes on if the last message is `is_begun`.

        thinks: whether the model may think before it answers. tools, variables: for the template. Raises ModelFileError
        if the template refuses the messages.
        """
        answer, thoughts = "", ""
        if is_begun(messages):
            answer = messages[-1]["content"]
            thoughts = str(messages[-1].get(self.form.reasoning_key, ""))
            messages = messages[:-1]
        if thinks and (thoughts or not answer):
            text = self._template.render(messages, tools=tools, variables=variables)
        else:
            variables = {**self.form.without_thinking, **(variables or {})}
            text = self.form.end_of_thinking(self._template.render(messages, tools=tools, variables=variables))
        return text + self._begun(text, thoughts, answer)

    def _begun(self, prompt: str, thoughts: str, answer: str) -> str:
        """What the model would have written after `prompt` for the beginning of an answer."""
        if self.form.calls == "harmony":
            analysis = f"{CHANNEL}analysis{MESSAGE}{thoughts}{MESSAGE_END}{START}assistant"
            return (analysis if thoughts else "") + (f"{CHANNEL}final{MESSAGE}{answer}" if answer else "")
        if thoughts and self.form.thinks:
            begin = "" if self.form.is_thinking(prompt) else f"{THINKING}\n"
            return f"{begin}{thoughts}\n{THINKING_END}\n\n{answer}"
        return answer

    @property
    def system_notice(self) -> str | None:
        """A sentence for the user where system messages cannot be told apart from the user's; else None."""
        if self._template.has_system_role:
            return None
        return "the chat template has no system role, so the system message goes before the user's first"

    def shown(self, has_tools: bool = False) -> frozenset[int]:
        """The control tokens that mark parts of an answer. has_tools: whether calls of tools are read."""
        found = [self._model.tokenize(name, add_special=False) for name in self.form.markers(has_tools)]
        return frozenset(ids[0] for ids in found if len(ids) == 1 and not self._model.token_bytes(ids[0]))


def prompt_tokens(model: LlamaModel, text: str) -> list[int]:
    """Token ids of a whole prompt. The model's BOS is added unless the text begins with it, as a template's may."""
    bos = model.special_token_text("bos")
    return model.tokenize(text, add_special=not (bos and text.startswith(bos)))


def single_turn_tokens(
    model: LlamaModel, text: str, template: FittedTemplate | None, system: str | None = None
) -> list[int]:
    """Token ids of `text` as the user's only message in the template, after the system message, if there is one.

    Without a template, of `text` as it is.
    """
    if template is None:
        return prompt_tokens(model, text)
    before: list[Message] = [{"role": "system", "content": system}] if system else []
    return prompt_tokens(model, template.render([*before, {"role": "user", "content": text}]))


class WrittenTexts:
    """Gives the tokens of texts, where a text that was written before keeps its tokens.

    Tokenized again, an answer might be split differently from how it was written, and the KV cache would be useless
    from there on. Safe to use from several threads.

    most: texts that are remembered; the text that was used longest ago is forgotten.
    states: texts that earlier runs have kept on disk; None where none are.
    """

    def __init__(self, model: LlamaModel, most: int, states: PromptStates | None = None) -> None:
        self._model = model
        self._most = most
        self._states = states
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._in_use = threading.Lock()

    def tokens(self, text: str) -> list[int]:
        """Token ids of `text`, beginning with those of the longest remembered text that it begins with."""
        with self._in_use:
            before = max((kept for kept in self._kept if text.startswith(kept)), key=len, default="")
            tokens = self._kept[before].tolist() if before else []
            if before:
                self._kept.move_to_end(before)
        if self._states:
            tokens, before = max((tokens, before), self._states.beginning(text, self._model), key=lambda it: len(it[1]))
        if not before:
            return prompt_tokens(self._model, text)
        return tokens + self._model.tokenize(text[len(before) :], add_special=False)

    def keep(self, text: str, tokens: Sequence[int] | None) -> None:
        """Remember that `text` has these tokens; None, if they say something else, changes nothing."""
        if tokens is None:
            return
        with self._in_use:
            self._kept[text] = array("i", tokens)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
