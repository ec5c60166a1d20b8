"""The fields of /v1/chat/completions: those of sampling, messages, tools, number of answers, streaming."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specrun.serving.chat_job import Chat
from specrun.serving.expected import read_expected
from specrun.serving.fields import Fields
from specrun.serving.messages import read_messages
from specrun.serving.reading.form import AnswerForm
from specrun.serving.request_fields import MOST_LOGPROBS, Defaults, read_request

MOST_ANSWERS = 16


@dataclass(frozen=True)
class Sending:
    """How many answers are sent, and how.

    n: number of answers. stream: whether pieces are sent as they are written. include_usage: whether a stream ends with
    the numbers of tokens. anew: whether the prompt is split into tokens and read again, whatever was kept of it.
    last_tree: whether each answer comes with its last token tree.
    """

    n: int
    stream: bool
    include_usage: bool
    anew: bool
    last_tree: bool


def read_chat(fields: Fields, defaults: Defaults, n_vocab: int, form: AnswerForm) -> Chat:
    """What the JSON asks for. n_vocab: tokens that the model has. form: of its answers. Raises ApiError."""
    request = replace(read_request(fields, defaults, n_vocab), logprobs=_logprobs(fields))
    return Chat(read_messages(fields, form), request, read_expected(fields, form), _variables(fields))


def _variables(fields: Fields) -> dict[str, Any]:
    """What a request gives the chat template, such as `enable_thinking`."""
    variables = dict(fields.inner("chat_template_kwargs").values)
    effort = fields.text("reasoning_effort")
    if effort == "none":
        variables.setdefault("enable_thinking", False)
    elif effort:
        variables.setdefault("reasoning_effort", effort)
    return variables


def _logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs", 0, MOST_LOGPROBS)
    if not fields.flag("logprobs"):
        if top:
            fields.refuse("top_logprobs", "needs logprobs to be true")
        return None
    return top or 0


def read_sending(fields: Fields) -> Sending:
    """How the answers are to be sent."""
    n = fields.integer("n", 1, MOST_ANSWERS) or 1
    include_usage = fields.inner("stream_options").flag("include_usage")
    return Sending(
        n,
        stream=bool(fields.flag("stream")),
        include_usage=bool(include_usage),
        anew=fields.flag("cache_prompt") is False,
        last_tree=bool(fields.flag("last_tree")),
    )
