"""How a model marks the parts of its answers, which its chat template shows, and a reader for each way.

Reasoning stands between <think> and </think>. Calls of tools are JSON objects, as Llama has them; or stand between
<tool_call> and </tool_call>, as JSON for Hermes and Qwen and as XML for Qwen's coders. The answers of gpt-oss
("harmony") have channels: analysis, final, and commentary with the calls.

    <|channel|>analysis<|message|>I need the weather.<|end|><|start|>assistant
    <|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

Harmony's markers are control tokens, whose text must be shown to the reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from specrun.reading.deltas import CallReader, Delta, Reader, content, reasoning

THINKING, THINKING_END = "<think>", "</think>"


class ThinkingReader(Reader):
    """Reads the reasoning at the beginning of an answer; the rest is for another reader.

    answer: reads what comes after the reasoning, or everything if there is none.
    is_open: whether the prompt ended with <think>, as some templates let it.
    """

    def __init__(self, answer: Reader, is_open: bool) -> None:
        super().__init__()
        self._answer = answer
        self._is_open = is_open

    def finish(self, is_cut: bool = False) -> list[Delta]:
        return super().finish(is_cut) + self._answer.finish(is_cut)

    def _read(self) -> Iterator[Delta | None]:
        if self._is_open or (yield from self._follows(THINKING)):
            if not self._is_open:
                self._skip(THINKING)
            yield from self._skip_blanks()
            yield from self._tell_until(reasoning, THINKING_END)
            self._skip(THINKING_END)
            yield from self._skip_blanks()
        while True:
            yield from self._answer.push(self._take(len(self._held)))
            yield None


PYTHON_TAG = "<|python_tag|>"


class Llama3Reader(CallReader):
    """Reads an answer that may be calls in Llama's way.

    tools: those that may be called. An object with another name is the answer itself.
    """

    def __init__(self, tools: Collection[str]) -> None:
        super().__init__()
        self._tools = tools

    def _read(self) -> Iterator[Delta | None]:
        while (yield from self._follows("{", PYTHON_TAG)):
            if self._held.lstrip().startswith(PYTHON_TAG):
                self._skip(PYTHON_TAG)
                continue
            if not (yield from self._read_json(self._tools)):
                break
            yield from self._skip_blanks("; \n")
        yield from super()._read()


TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"
_TAG = "<function="
_FUNCTION = re.compile(rf"\s*{_TAG}([^<>\n]{{1,200}})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,200})>\n?")
_PARAMETER_END, _END = "</parameter>", re.compile(r"\s*</function>")
_LONGEST_TAG = 300  # characters; a longer beginning is no tag


class HermesReader(CallReader):
    """Reads an answer with calls as Hermes and Qwen write them. White space around calls is no part of the answer.

    tools: the JSON schema of each tool's arguments, by name.
    """

    def __init__(self, tools: Mapping[str, Any]) -> None:
        super().__init__()
        self._tools = tools

    def _read(self) -> Iterator[Delta | None]:
        while (yield from self._tell_until(content, TOOL_CALL)):
            self._skip(TOOL_CALL)
            is_xml = yield from self._follows("<")
            if not (yield from self._read_xml() if is_xml else self._read_json()):
                yield from content(TOOL_CALL)
                continue
            yield from self._follows(TOOL_CALL_END)
            self._skip(TOOL_CALL_END)
            yield from self._skip_blanks()
        yield from content(self._held)

    def _read_xml(self) -> Generator[Delta | None, None, bool]:
        """Tell <function=NAME>, and <parameter=NAME> around each argument, which becomes JSON when it is complete.

        Returns False if the held text is no call.
        """
        while not (found := _FUNCTION.match(self._held)):
            begun = self._held.lstrip()
            may_begin = begun.startswith(_TAG) or _TAG.startswith(begun)
            if self._is_cut and may_begin:
                self._held = ""
                return True
            if self._has_ended or len(begun) > _LONGEST_TAG or not may_begin:
                return False
            yield None
        tool, comma = found[1], ""
        self._take(found.end())
        yield self._begin(tool)
        yield from self._more("{")
        while not (end := _END.match(self._held)):
            parameter = _PARAMETER.match(self._held)
            value, closed, rest = self._held[parameter.end() :].partition(_PARAMETER_END) if parameter else ("", "", "")
            if parameter and closed:
                name, self._held = parameter[1], rest
                argument = self._argument(tool, name, value.removesuffix("\n"))
                yield from self._more(f"{comma}{json.dumps(name, ensure_ascii=False)}: {argument}")
                comma = ", "
            elif self._has_ended:
                self._held = ""
                return True
            else:
                yield None
        self._take(end.end())
        yield from self._more("}")
        return True

    def _argument(self, tool: str, name: str, text: str) -> str:
        """An argument as JSON: the text itself if the schema asks for a text, or if it is no JSON."""
        schema = self._tools.get(tool)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        argument = properties.get(name) if isinstance(properties, dict) else None
        if not isinstance(argument, dict) or argument.get("type") != "string":
            try:
                json.loads(text, parse_constant=_refuse)
                return text.strip()
            except (ValueError, RecursionError):
                pass
        return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> NoReturn:
    """NaN and infinities are Python's, not JSON's."""
    raise ValueError(constant)


CHANNEL, MESSAGE, START, MESSAGE_END, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"
# How the answer's own channel begins, with and without the format of its text.
FINAL_HEADERS = tuple(
    f"{CHANNEL}final{form}{MESSAGE}" for form in ("", " json", f" {CONSTRAIN}json", f"{CONSTRAIN}json")
)
_CHANNEL_MARKERS = (CHANNEL, START, MESSAGE_END, "<|call|>", "<|return|>")
_CHANNEL_HEADERS = (*_CHANNEL_MARKERS, MESSAGE, "to=")  # what a header begins with
_CALLED = re.compile(r"to=functions\.([^\s<]+)")


def call_header(tool: str) -> str:
    """How a message that calls this tool begins, after harmony's <|start|>assistant."""
    return f" to=functions.{tool}{CHANNEL}commentary json{MESSAGE}"


class HarmonyReader(CallReader):
    """Reads an answer in channels. A text without channels is the answer itself.

    header: the beginning of the first message's header, where the prompt ends with it.
    """

    def __init__(self, header: str = "") -> None:
        super().__init__()
        self._held = header

    def _read(self) -> Iterator[Delta | None]:
        is_going_on = True
        while is_going_on:
            tell: Callable[[str], list[Delta]] = content
            if (yield from self._follows(*_CHANNEL_HEADERS)):
                while MESSAGE not in self._held:
                    yield None  # a header that is not complete adds nothing
                header, _, self._held = self._held.partition(MESSAGE)
                if header.partition(CHANNEL)[2].lstrip().startswith("analysis"):
                    tell = reasoning
                if called := _CALLED.search(header):
                    yield self._begin(called[1])
                    tell = self._more
            is_going_on = yield from self._tell_until(tell, *_CHANNEL_MARKERS)
            n_blanks = len(self._held) - len(self._held.lstrip())
            yield from tell(self._take(n_blanks))


# How calls of tools are written; "coder" is XML between Hermes' markers.
CallStyle = Literal["hermes", "coder", "llama3", "harmony"]

# GLM writes something else between the same tags, and Functionary after the same headers.
_HERMES = re.compile(r"""<tool_call>(?:\\n|\s)*['"]?[^<]{0,40}?\{+\\?"name\\?\"""")
_LLAMA3 = ("<|start_header_id|>", '{"name": ', '"parameters": ')


@dataclass(frozen=True)
class AnswerForm:
    """How answers are marked.

    calls: how calls of tools are written; None if the template shows no way that is known here.
    thinks: whether reasoning stands between <think> and </think>.
    takes_text: whether the template takes the arguments of earlier calls as text, and not only as objects.
    """

    calls: CallStyle | None = None
    thinks: bool = False
    takes_text: bool = False

    def reader(
        self, prompt: str, tools: Mapping[str, Any] | None = None, header: str = "", splits_reasoning: bool = True
    ) -> Reader:
        """What reads an answer to `prompt`.

        tools: the JSON schema of each tool's arguments, by name; None if calls are text. header: how harmony's first
        message begins, where the prompt ends with it. splits_reasoning: False reads it as text, but for harmony's.
        """
        if self.calls == "harmony":
            return HarmonyReader(header)
        answer = Reader()
        if tools is not None:
            answer = Llama3Reader(tools) if self.calls == "llama3" else HermesReader(tools)
        return ThinkingReader(answer, self.is_thinking(prompt)) if self.thinks and splits_reasoning else answer

    def is_thinking(self, prompt: str) -> bool:
        """Whether the prompt ends where the model thinks."""
        return self.thinks and prompt.rstrip().endswith(THINKING)

    @property
    def without_thinking(self) -> dict[str, Any]:
        """The variables by which a template lets the model answer at once; each family of models has its own.

        gpt-oss always thinks; it can only be asked to think little.
        """
        effort = "low" if self.calls == "harmony" else "none"
        return {"enable_thinking": False, "thinking": False, "thinking_budget": 0, "reasoning_effort": effort}

    def end_of_thinking(self, prompt: str) -> str:
        """`prompt`, with its reasoning ended where it ends within: some templates begin it whatever they are told."""
        return f"{prompt.rstrip()}\n\n{THINKING_END}\n\n" if self.is_thinking(prompt) else prompt

    @property
    def reasoning_key(self) -> Literal["thinking", "reasoning_content"]:
        """What the template calls the reasoning of a message."""
        return "thinking" if self.calls == "harmony" else "reasoning_content"

    @property
    def reasoning(self) -> tuple[str, str] | None:
        """The markers around reasoning; None if there are none."""
        if self.calls == "harmony":
            return f"{CHANNEL}analysis", MESSAGE_END
        return (THINKING, THINKING_END) if self.thinks else None

    def markers(self, has_tools: bool) -> tuple[str, ...]:
        """What answers are read by; models have control tokens for some of them. has_tools: whether calls are read."""
        if self.calls == "harmony":
            return (CHANNEL, MESSAGE, START, MESSAGE_END, CONSTRAIN)
        think = self.reasoning or ()
        if not has_tools:
            return think
        return (*think, PYTHON_TAG) if self.calls == "llama3" else (*think, TOOL_CALL, TOOL_CALL_END)


def answer_form(template: str) -> AnswerForm:
    """The form of the answers of a model with this chat template."""
    return AnswerForm(_call_style(template), THINKING_END in template, "arguments is string" in template)


def _call_style(template: str) -> CallStyle | None:
    if CHANNEL in template:
        return "harmony"
    if "tools" not in template:
        return None
    if TOOL_CALL in template and "<function=" in template:
        return "coder"
    if _HERMES.search(template):
        return "hermes"
    return "llama3" if all(part in template for part in _LLAMA3) else None
