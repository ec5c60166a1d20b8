"""How a model is talked with: its chat template makes prompts of messages, and shows how answers are to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specrun.decoding.fitted_template import FittedTemplate
from specrun.decoding.prompt_tokens import chat_template
from specrun.llama import LlamaModel, named_template
from specrun.llama.chat_template import Message
from specrun.llama.named_template import NamedTemplate
from specrun.reading.calls import CHANNEL, MESSAGE, MESSAGE_END, START
from specrun.reading.deltas import THINKING, THINKING_END
from specrun.reading.form import answer_form


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
        self._template = chat_template(model) or FittedTemplate(NamedTemplate(named_template.CHATML))
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
