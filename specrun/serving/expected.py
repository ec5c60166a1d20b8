"""What an answer is expected to be: any text, JSON, or calls of tools. Hence its grammar, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from specrun.constraints.json_schema import schema_rules
from specrun.constraints.readings import check_readings
from specrun.constraints.rules import Trigger, grammar_text
from specrun.decoding.generation import Request
from specrun.errors import UsageError
from specrun.reading.calls import (
    CHANNEL,
    FINAL_HEADERS,
    MESSAGE,
    MESSAGE_END,
    TOOL_CALL,
    HarmonyReader,
    HermesReader,
    Llama3Reader,
)
from specrun.reading.deltas import THINKING, THINKING_END, Reader
from specrun.reading.form import AnswerForm
from specrun.serving.answers import NewReader
from specrun.serving.api_error import ApiError, refused
from specrun.serving.request_fields import Fields, must, parsed
from specrun.serving.tools import ANY_OBJECT, LONGEST_GRAMMAR, Converted, Tools, call_rules, read_tools

_NO_OBJECT = "[^{ \\n] [\\x00-\U0010ffff]*"  # a text that is no call in Llama's way
_BLANKS = "[ \\n]{0,3}"  # between reasoning and answer


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
            return f" to=functions.{self.tools.forced[0]}{CHANNEL}commentary json{MESSAGE}"
        return ""

    def constrained(self, request: Request, prompt: str) -> Request:
        """`request` with the grammar that holds the answer to what is expected. prompt: its text."""
        gbnf, trigger = self._grammar(self.form.is_thinking(prompt))
        return replace(request, gbnf=gbnf, trigger=trigger) if gbnf is not None else request

    def reader(self, prompt: str) -> NewReader:
        """What makes a reader for each answer to this prompt."""
        if self.form.calls == "harmony":
            return lambda: HarmonyReader(self.prompt_end)
        if not self.splits_reasoning:
            return self._answer_reader
        return lambda: self.form.reader(prompt, self._answer_reader())

    def _answer_reader(self) -> Reader:
        if self.tools is None:
            return Reader()
        return Llama3Reader(self.tools.schemas) if self.form.calls == "llama3" else HermesReader(self.tools.schemas)

    def _grammar(self, is_thinking: bool) -> tuple[str | None, Trigger | None]:
        if self.form.calls == "harmony":
            if self.tools and self.tools.forced:
                return grammar_text(*self.tools.rules[self.tools.forced[0]]), None
            if self.schema is None:
                return None, None
            analysis = (f"{CHANNEL}analysis", MESSAGE_END)
            # The final channel's header may have more than its name, so its end is waited for. Calls are elsewhere.
            headers = FINAL_HEADERS if self.tools else (MESSAGE,)
            return grammar_text(*self.schema), Trigger(headers[0], analysis, others=headers[1:])
        reasoning = (THINKING, THINKING_END) if self.form.thinks else None
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


def read_expected(body: Mapping[str, Any], form: AnswerForm) -> Expected:
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
