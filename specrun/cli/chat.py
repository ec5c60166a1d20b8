"""`specrun chat`: a conversation on a terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specrun.display_text import counted
from specrun.errors import PromptError, UsageError
from specrun.locations import names_file, typed
from specrun.options.expand import argument, complete_targets, expanded, flag
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import (
    ChatSamplingOptions,
    Thinking,
    prompt_cache_option,
    system_option,
    think_option,
)
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import answer_report, output

if TYPE_CHECKING:
    from specrun.chat.conversation_file import LastConversation
    from specrun.decoding.generation import Request
    from specrun.loading.model import Model
    from specrun.views.answer_stream import AnswerView


@dataclass(frozen=True)
class ChatOptions:
    """How the conversation begins and is shown, as the user gave it."""

    system: str | None = system_option()
    continue_: bool = flag("Go on with the last conversation, and with its model and draft.")
    think: Thinking = think_option()
    plain: bool = flag("Write answers as they come: no Markdown, nothing that moves.")
    prompt_cache: bool | None = prompt_cache_option()


@expanded
def chat(
    context: typer.Context,
    name: Annotated[str | None, argument("MODEL", "A name, file or address; see --target.", complete_targets)] = None,
    first: Annotated[str | None, argument("MESSAGE", "What you say first.")] = None,
    *,
    models: ModelOptions,
    how: ChatOptions,
    speculation: SpeculationOptions,
    sampling: ChatSamplingOptions,
    machine: MachineOptions,
) -> int:
    """Talk with a model.

    In the chat, /help lists the commands, Ctrl-C stops an answer, and Ctrl-D leaves. Without a MODEL it asks which one
    shall answer: one that is on this machine, or one that fits it.

    If stdin is not a terminal, every line of it is a message. Only the answers go to stdout. A line that fails decides
    the exit code, and the chat goes on.

        specrun chat qwen-14b
        specrun chat qwen-14b "Why is the sky blue?" --system "Be brief."
    """
    from specrun.chat import conversation_file
    from specrun.cli.opening import target_of
    from specrun.decoding.generation import make_request

    speculation.check_constrained(sampling.grammar, sampling.json_schema)
    request = make_request(sampling)
    models, first = _named(models, context.get_parameter_source("target"), name, first)
    first = first and typed(first, "the message", PromptError)
    last = conversation_file.last() if how.continue_ else None
    if last and not models.target:
        target, models = last.target, replace(models, draft=models.draft or last.draft)
    else:
        target = target_of(models.target)
    return _talk(target, models, (speculation, machine, sampling.temp), request, how, first, last)


def _talk(
    target: str | None,
    models: ModelOptions,
    asked: tuple[SpeculationOptions, MachineOptions, float],
    request: Request,
    how: ChatOptions,
    first: str | None,
    last: LastConversation | None,
) -> int:
    """Hold the conversation. last: which is continued. Returns the exit code."""
    from specrun.catalog.here import ollama_behind
    from specrun.catalog.resolve import way_to_draft
    from specrun.chat import conversation_file
    from specrun.chat.loop import ChatLoop, Surroundings
    from specrun.chat.reader import PipeReader, TerminalReader
    from specrun.cli.opening import opened
    from specrun.llama import chat_template

    on_terminal = sys.stdin.isatty()
    said: list[str] = []  # about the model; on a terminal /stats shows it
    note = said.append if on_terminal else output.note

    def draft_of(name: str | None) -> str | None:
        # A draft that was named goes with the target that was named; another target has its own.
        return models.draft if name == target or models.draft == "none" else None

    def open_target(name: str | None) -> Model:
        chat_template.prepare()
        said.clear()
        named = replace(models, target=name, draft=draft_of(name))
        return opened(named, *asked, is_chat=True, note=note, keeps_prompts=how.prompt_cache is not False)

    history = conversation_file.folder() / "typed.jsonl"
    reader = TerminalReader(history, output.note) if on_terminal else PipeReader()
    keeper = conversation_file.Keeper(last) if on_terminal else None
    view_of = partial(_view, plain=how.plain)
    around = Surroundings(reader.read, view_of, open_target, keeper, draft_of, said)
    with ChatLoop(target, request, around, how.think) as loop:
        loop.begin(last.messages if last else [], how.system)
        kept = ollama_behind(target, loop.model.llama_model.path)
        if kept and kept.system and not last and how.system is None:
            loop.begin([], kept.system)
            note(f"the system message is {target}'s in Ollama; /system none removes it")
        if on_terminal:
            way = way_to_draft(target) if models.draft is None else None
            output.note(answer_report.chat_line(target, loop.model, asked[-1], way))
        if last and (n := len(last.messages)):
            output.note(f"continuing a conversation of {counted(n, 'message')}; the last was: {last.question}")
        if first:
            output.hint(f">>> {first}")  # as if it had been typed
        loop.run(first)
        n_said = len(said)
    for text in said[n_said:]:  # what was not kept while the model was closed
        output.note(text)
    return 0 if on_terminal else loop.exit_code


def _named(models: ModelOptions, source: Any, name: str | None, first: str | None) -> tuple[ModelOptions, str | None]:
    """The models, and what is said first, by the arguments. source: where click has --target from.

    A single argument is the message if --target names the model, or if no model can be called so. Raises UsageError.
    """
    is_named = source is not None and source.name == "COMMANDLINE"
    if name is None:
        return models, first
    if is_named and first is not None:
        raise UsageError(f"both --target {models.target} and {name} name a model; give one of them")
    if first is None and (is_named or (any(map(str.isspace, name)) and not names_file(name))):
        return models, name
    return replace(models, target=name), first


def _view(target: str | None, plain: bool) -> AnswerView:
    """What shows the answers of a target; None is the embedded pair."""
    from specrun.views.answer_stream import show_live, show_plain
    from specrun.views.markdown_text import MarkdownText

    if plain or not output.stdout.is_terminal or output.stdout.is_dumb_terminal:
        return show_plain
    # The embedded target writes Python, whose `__init__` is not meant as bold letters.
    return partial(show_live, output.stdout, MarkdownText if target is not None else None)
