"""What a request asks for, whatever its address: prompts, how they are answered, and what the answers must be.

An answer may be any text, JSON, or calls of tools: hence its grammar, and how it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, InstanceOf

from specrun.constraints.json_schema import schema_rules
from specrun.constraints.keywords import check_readings
from specrun.constraints.rules import Trigger, grammar_text
from specrun.decoding.generation import Request
from specrun.decoding.prompts import is_begun
from specrun.errors import UsageError
from specrun.reading.deltas import Reader
from specrun.reading.form import FINAL_HEADERS, MESSAGE, TOOL_CALL, AnswerForm, call_header
from specrun.serving.prompts import Prompt, Prompts, read_messages
from specrun.serving.refusals import ApiError, refused
from specrun.serving.request_fields import (
    MOST_LOGPROBS,
    Fields,
    Integer,
    Json,
    Sending,
    must,
    parsed,
    read_request,
)
from specrun.serving.service import Service
from specrun.serving.tools import ANY_OBJECT, LONGEST_GRAMMAR, Converted, Tools, call_rules, read_tools

NewReader = Callable[[], Reader]  # makes the reader of an answer
MOST_PROMPTS = 64
_NO_OBJECT = "[^{ \\n] [\\x00-\U0010ffff]*"  # a text that is no call in Llama's way
_BLANKS = "[ \\n]{0,3}"  # between reasoning and answer


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    request: how the prompts are answered, without a prompt. new_reader: makes the reader of an answer.
    sending: how many answers each prompt has, and how they are sent.
    """

    prompts: Sequence[Prompt]
    request: Request
    new_reader: NewReader
    sending: Sending


class _ChatFields(Fields):
    logprobs: bool = False
    top_logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] = 0
    chat_template_kwargs: InstanceOf[Json] = Field({})
    reasoning_effort: str = ""


def read_chat(service: Service, body: Json) -> Wanted:
    """What is asked with the conversation in a body of OpenAI's shape. Raises SpecrunError and ApiError."""
    sending, prompts = parsed(Sending, body), service.loaded.prompts
    request = read_request(body, service.defaults, service.loaded.model.llama_model.n_vocab)
    given = parsed(_ChatFields, body)
    if given.logprobs:
        request = replace(request, logprobs=given.top_logprobs)
    elif given.top_logprobs:
        raise refused("top_logprobs", "needs logprobs to be true")
    form = prompts.format.form
    messages, expected = read_messages(body, form), read_expected(body, form)
    is_formed = expected.schema is not None or request.gbnf is not None or expected.prompt_end
    if is_formed and is_begun(messages) and messages[-1]["content"]:
        why = "end with a message of the assistant, which cannot be continued in a format or as a named call"
        raise refused("messages", f"{why}; leave out the one or the other")
    effort, thinks = given.reasoning_effort, given.reasoning_effort != "none"
    variables = ({"reasoning_effort": effort} if effort and thinks else {}) | given.chat_template_kwargs
    tools = expected.tools.declared if expected.tools else []
    prompt = prompts.of_messages(messages, tools, variables, thinks, expected.prompt_end, not sending.cache_prompt)
    shown = prompts.format.shown(expected.tools is not None)
    return _wanted(service, [prompt], expected, replace(request, shown=shown), sending)


_TokenIds = Annotated[list[int], Field(fail_fast=True)]
TextPrompt = Annotated[
    str
    | Annotated[_TokenIds, Field(min_length=1)]
    | Annotated[list[str | _TokenIds], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)],
    must(f"be a string, a list of token ids, or a list of at most {MOST_PROMPTS} of them"),
]


def text_prompts(prompts: Prompts, given: Any, anew: bool) -> list[Prompt]:
    """What a `TextPrompt` stands for. anew: see `Prompts.of_text`. Raises ApiError."""
    several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    return [prompts.of_text(p, anew) if isinstance(p, str) else prompts.of_tokens(p) for p in several]


def read_text(service: Service, body: Json, prompts: Sequence[Prompt], logprobs: int | None = None) -> Wanted:
    """What is asked with texts that the model goes on with. Raises SpecrunError and ApiError."""
    expected = read_expected({**body, "tools": None}, AnswerForm())  # it is told of no tools, and nothing is marked
    request = read_request(body, service.defaults, service.loaded.model.llama_model.n_vocab)
    return _wanted(service, prompts, expected, replace(request, logprobs=logprobs), parsed(Sending, body))


def _wanted(
    service: Service, prompts: Sequence[Prompt], expected: Expected, request: Request, sending: Sending
) -> Wanted:
    text = prompts[0].text or ""
    request = expected.constrained(request, text)
    plans = service.loaded.model.plans.candidates
    if request.gbnf is not None and any(plan.method.samples for plan in plans):
        raise ApiError("the server's --method cannot follow a grammar, which this request needs; start it with another")
    return Wanted(prompts, request, expected.reader(text), sending)


@dataclass(frozen=True)
class Expected:
    """What the answers to a request are expected to be.

    form: how the model marks them. tools: what it may call. schema: the rules of what it must write as JSON; None for
    anything.
    splits_reasoning: whether reasoning is sent apart from the answer.
    """

    form: AnswerForm
    tools: Tools | None = None
    schema: Converted | None = None
    splits_reasoning: bool = True

    @property
    def prompt_end(self) -> str:
        """What follows the template's text: harmony's header of the call that must follow."""
        if self.form.calls == "harmony" and self.tools and self.tools.forced:
            return call_header(self.tools.forced[0])
        return ""

    def constrained(self, request: Request, prompt: str) -> Request:
        """`request` with the grammar that holds the answer to what is expected. prompt: its text."""
        gbnf, trigger = self._grammar(self.form.is_thinking(prompt))
        return replace(request, gbnf=gbnf, trigger=trigger) if gbnf is not None else request

    def reader(self, prompt: str) -> NewReader:
        """What makes a reader for each answer to this prompt."""
        schemas = self.tools.schemas if self.tools else None
        return partial(self.form.reader, prompt, schemas, self.prompt_end, self.splits_reasoning)

    def _grammar(self, is_thinking: bool) -> tuple[str | None, Trigger | None]:
        if self.form.calls == "harmony":
            if self.tools and self.tools.forced:
                return grammar_text(*self.tools.rules[self.tools.forced[0]]), None
            if self.schema is None:
                return None, None
            # The final channel's header may have more than its name, so its end is waited for. Calls are elsewhere.
            headers = FINAL_HEADERS if self.tools else (MESSAGE,)
            return grammar_text(*self.schema), Trigger(headers[0], self.form.reasoning, others=headers[1:])
        reasoning = self.form.reasoning
        tools, roots, rules = self.tools, list[str](), dict[str, str]()
        if self.schema is not None and not (tools and tools.forced):
            name, rules = self.schema
            roots.append(name)
        if tools and self.form.calls and not (roots or tools.forced):
            if self.form.calls == "hermes" or (self.form.calls == "coder" and tools.strict):
                calls, rules = call_rules(self.form.calls, tools, is_begun=True)
                return grammar_text(calls, rules), Trigger(TOOL_CALL, reasoning, is_thinking)
            if not tools.strict:
                return None, None
            roots.append(_NO_OBJECT)
        if tools and self.form.calls:
            calls, more = call_rules(self.form.calls, tools)
            roots, rules = [calls, *roots], rules | more
        if not roots:
            return None, None
        root = " | ".join(roots)
        # The blank lines after the reasoning.
        gbnf = grammar_text(f"{_BLANKS} ({root})" if is_thinking else root, rules)
        return gbnf, Trigger("", reasoning, is_open=True) if is_thinking else None


class _JsonSchema(Fields):
    schema_: Any = Field(alias="schema")


class _Format(Fields):
    type: Annotated[Literal["", "text", "json_object", "json_schema"], must("be text, json_object or json_schema")] = ""
    schema_: Any = Field(None, alias="schema")
    json_schema: Any = Field({})


# What other servers take, to hold answers to something. They would be promises that nobody keeps.
_OTHERS = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "regex", "ebnf"),
    "format",
)


class _ExpectedFields(Fields):
    grammar: Any = None
    response_format: _Format = Field(default_factory=lambda: _Format.model_construct())
    json_schema: Any = None  # llama-server's
    reasoning_format: str = ""


def read_expected(body: Json, form: AnswerForm) -> Expected:
    """What a request expects of its answers. Raises ApiError."""
    tools, given = read_tools(body, form.calls), parsed(_ExpectedFields, body)
    schema = _schema(given, [name for name in _OTHERS if body.get(name) is not None])
    if tools and form.calls is None:
        why = "cannot be used: the model's chat template has no calls of a known form"
        raise refused("tools", f"{why}; switch tools off in the program that asks")
    if tools and form.calls == "harmony" and len(tools.forced) > 1:
        raise refused("tool_choice", "cannot be required with several tools for this model; name the function")
    return Expected(form, tools, schema, given.reasoning_format != "none")


def _schema(given: _ExpectedFields, others: Sequence[str]) -> Converted | None:
    """The rules of the answer's JSON schema; None if it may be any text. others: fields that nobody knows here. Raises
    ApiError.
    """
    if given.grammar:
        raise refused("grammar", "is not taken from requests, because a grammar can hang; send a json_schema")
    if others:
        raise refused(others[0], "is not known here; send the schema as response_format, or a pattern within one")
    wanted = given.response_format
    if wanted.type == "json_object":
        schema, name = (ANY_OBJECT if wanted.schema_ is None else wanted.schema_), "response_format.schema"
    elif wanted.type == "json_schema":
        at = "response_format.json_schema"
        schema, name = parsed(_JsonSchema, wanted.json_schema, at).schema_, f"{at}.schema"
    else:
        schema, name = given.json_schema, "json_schema"
    if schema is None:
        return None
    if not isinstance(schema, dict | bool):
        raise refused(name, "must be a JSON schema")
    try:
        check_readings(schema)
        converted = schema_rules(schema)
    except RecursionError:
        raise refused(name, "is nested too deeply; split it with $ref") from None
    except UsageError as error:
        raise ApiError(f"{name} cannot be used: {error}", param=name) from error
    if len(grammar_text(*converted)) > LONGEST_GRAMMAR:
        raise refused(name, f"makes a grammar of more than {LONGEST_GRAMMAR} characters; give a smaller schema")
    return converted
