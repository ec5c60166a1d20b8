"""From messages or text to token ids: the messages of a request as chat templates take them, and prompts as tokens.

Text that was written before keeps its tokens (`WrittenTexts`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, InstanceOf, ValidationInfo, field_validator

from specrun.decoding.completion import Completion
from specrun.decoding.prompts import ChatFormat, WrittenTexts, prompt_tokens
from specrun.errors import ModelFileError
from specrun.llama.chat_template import Message
from specrun.loading.model import Model
from specrun.reading.deltas import whole_characters
from specrun.reading.form import AnswerForm
from specrun.serving.refusals import ApiError, refused, too_long
from specrun.serving.request_fields import Fields, Json, must, parsed
from specrun.serving.tools import function_json

MOST_MESSAGES = 10_000
_MOST_CALLS = 1000  # in a message


class _Function(Fields):
    name: str
    arguments: Annotated[str | InstanceOf[Json] | None, must("be a string with a JSON object")] = None


class _Call(Fields):
    id: Any = None
    function: _Function


_Calls = list[Annotated[_Call, must("be an object with an id and a function that has a name and arguments")]]


class _Message(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    reasoning_content: str = ""
    tool_calls: Annotated[_Calls, Field(max_length=_MOST_CALLS, fail_fast=True)] = Field([])
    tool_call_id: str = ""
    name: str = ""
    content: str = Field(None, validate_default=True)

    @field_validator("content", mode="before")
    @classmethod
    def _text(cls, content: Any, read: ValidationInfo) -> str:
        is_call = read.data.get("role") == "assistant" and read.data.get("tool_calls")
        return "" if content is None and is_call else joined(content)


class _Conversation(Fields):
    messages: Annotated[list[_Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]


def joined(content: Any, types: Collection[str] = ("text",)) -> str:
    """The text of a message, which may come in parts. types: those that parts may have; empty for any.

    Raises ValueError for anything else.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ValueError("must be a string or a list of parts")
    for part in content:
        if types and part.get("type") not in types:
            raise ValueError(f"may have parts of text only; this model reads no {part.get('type') or 'other parts'}")
    texts = [part.get("text", part.get("refusal")) for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("has a part without a text")
    return "\n".join(texts)


def read_messages(body: Json, form: AnswerForm) -> list[Message]:
    """The conversation. Raises ApiError."""
    called: dict[str, str] = {}  # the tool of each call so far, by the call's id
    return [_for_template(given, form, called) for given in parsed(_Conversation, body).messages]


def _for_template(given: _Message, form: AnswerForm, called: dict[str, str]) -> Message:
    message: Message = {"role": "system" if given.role == "developer" else given.role, "content": given.content}
    if given.role == "assistant":
        if given.tool_calls:
            message["tool_calls"] = [_call(call, form) for call in given.tool_calls]
            called.update({call["id"]: call["function"]["name"] for call in message["tool_calls"]})
        # gpt-oss's template refuses reasoning beside text in a message with calls.
        if given.reasoning_content and not (form.calls == "harmony" and given.tool_calls and given.content):
            message[form.reasoning_key] = given.reasoning_content
    elif given.role == "tool":
        message["tool_call_id"] = given.tool_call_id
        tool = given.name or called.get(given.tool_call_id)
        if tool:
            message["name"] = tool
    return message


def _call(call: _Call, form: AnswerForm) -> Json:
    """A call that the assistant made, for the template: with arguments as an object, or as the text that was written.

    That text, where the template takes it, is what the cache has already.
    """
    arguments = call.function.arguments
    if isinstance(arguments, str) and not form.takes_text:
        arguments = _parsed(arguments)
    elif isinstance(arguments, dict) and form.takes_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    told = function_json(name=call.function.name, arguments=arguments or ("{}" if form.takes_text else {}))
    return {"id": str(call.id or ""), **told}


def _parsed(arguments: str) -> str | Json:
    """The object, in whole characters, or the text if it is none, as an answer that was cut off may have left it."""
    try:
        value = json.loads(whole_characters(json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)))
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


_LONGEST_TOKEN = 256  # characters; in real vocabularies only runs of spaces come near it
_MOST_KEPT = 64  # conversations whose tokens are remembered


@dataclass(frozen=True)
class Prompt:
    """A prompt as text, and as the tokens that stand for it. text: None for a prompt that came as tokens."""

    text: str | None
    tokens: list[int]


class Prompts:
    """Makes prompts of one model. Safe to use from several threads.

    format: how the model is talked with; ModelFileError is raised if its chat template is broken.
    """

    def __init__(self, model: Model) -> None:
        self._model = model.llama_model
        self._ctx_size = model.engine.ctx_size
        self.format = ChatFormat(self._model)
        # The template's process takes requests in turn, and many prompts at once would take cores from the model.
        self._one_at_a_time = threading.Lock()
        self._written = WrittenTexts(self._model, _MOST_KEPT, model.prompt_states)

    def of_messages(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        thinks: bool = True,
        end: str = "",
        anew: bool = False,
    ) -> Prompt:
        """The prompt of a conversation. tools, variables, thinks: as `ChatFormat.prompt` has them.

        end: what follows the template's text. anew: whether text that was written before is split again.
        Raises ApiError if the template refuses the messages, or the prompt does not fit the context.
        """
        for message in messages:
            self.check_length(message["content"])
        try:
            with self._one_at_a_time:
                text = self.format.prompt(messages, thinks, tools, variables)
        except ModelFileError as error:  # as "roles must alternate"
            raise ApiError(str(error), param="messages") from error
        return self.of_text(text + end, anew)

    def of_text(self, text: str, anew: bool = False) -> Prompt:
        """The prompt that continues `text`; `anew` is as above. Raises ApiError if it does not fit the context."""
        self.check_length(text)
        with self._one_at_a_time:
            tokens = prompt_tokens(self._model, text) if anew else self._written.tokens(text)
        return self._checked(Prompt(text, tokens))

    def of_gap(
        self, before: str, behind: str, files: Sequence[tuple[str, str]] = (), begun: str = "", param: str = "suffix"
    ) -> Prompt:
        """The prompt whose answer fills a gap, see `LlamaModel.infill_tokens`. Raises ApiError if it does not fit the
        context, or the model cannot do it: `param` is the field that asks for it.
        """
        self.check_length("".join([before, behind, begun, *(name + text for name, text in files)]))
        tokens = self._model.infill_tokens(before, behind, files, begun)
        if tokens is None:
            raise refused(param, "is not possible: this model has no tokens for filling a gap, it only continues texts")
        return self._checked(Prompt(None, tokens))

    def check_length(self, text: str) -> None:
        """Refuse a text that cannot fit, without the time that splitting it would take. Raises ApiError."""
        if len(text) > self._ctx_size * _LONGEST_TOKEN:
            raise too_long(len(text) // _LONGEST_TOKEN, self._ctx_size, is_split=False)

    def of_tokens(self, tokens: list[int]) -> Prompt:
        """The prompt of these tokens. Raises ApiError for unknown tokens, and for too many."""
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._model.n_vocab:
            raise ApiError(f"prompt must have token ids from 0 to {self._model.n_vocab - 1}", param="prompt")
        return self._checked(Prompt(None, tokens))

    def _checked(self, prompt: Prompt) -> Prompt:
        if not prompt.tokens:
            raise ApiError("the prompt is empty; give some text")
        if len(prompt.tokens) >= self._ctx_size:
            raise too_long(len(prompt.tokens), self._ctx_size)
        return prompt

    def keep(self, prompt: Prompt, completion: Completion) -> None:
        """Remember the tokens of an answer and of what it answered."""
        if prompt.text is not None:
            self._written.keep(prompt.text + completion.text, completion.tokens_with_prompt)
