"""How a model marks the parts of its answers, which its chat template shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from specrun.reading.calls import (
    CHANNEL,
    CONSTRAIN,
    MESSAGE,
    MESSAGE_END,
    PYTHON_TAG,
    START,
    TOOL_CALL,
    TOOL_CALL_END,
    HarmonyReader,
)
from specrun.reading.deltas import THINKING, THINKING_END, Reader, ThinkingReader

# How calls of tools are written: as the files of these names say, and "coder" as XML in Hermes' markers.
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

    def reader(self, prompt: str, answer: Reader | None = None) -> Reader:
        """What reads an answer to `prompt`. answer: reads what is not reasoning, where it may be more than a text."""
        if self.calls == "harmony":
            return HarmonyReader()
        answer = answer or Reader()
        return ThinkingReader(answer, self.is_thinking(prompt)) if self.thinks else answer

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

    def markers(self, has_tools: bool) -> tuple[str, ...]:
        """What answers are read by; models have control tokens for some of them. has_tools: whether calls are read."""
        if self.calls == "harmony":
            return (CHANNEL, MESSAGE, START, MESSAGE_END, CONSTRAIN)
        think = (THINKING, THINKING_END) if self.thinks else ()
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
