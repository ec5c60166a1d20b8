"""Messages in the form that a chat template takes: not every template has a system role, or takes texts as texts.

What it takes shows in what it makes of known messages. llama.cpp looks in the same way, and helps in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from specrun.errors import ModelFileError
from specrun.llama.chat_template import ADVICE, ChatTemplate, Message
from specrun.llama.named_template import NamedTemplate

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
