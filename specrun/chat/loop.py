"""The chat loop: it reads messages, writes answers and runs commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from specrun import interrupts
from specrun.catalog.cache import LocalModel
from specrun.catalog.here import local_models
from specrun.chat import commands, conversation_file
from specrun.chat.conversation_file import Keeper, LastConversation
from specrun.chat.reader import without_echo
from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.display_text import counted, one_line, size_text, visible, without_secrets
from specrun.errors import PromptError, SpecrunError, UsageError
from specrun.interrupts import Ending, InterruptFlag, held, is_ending
from specrun.llama.chat_template import Message
from specrun.loading.model import Model
from specrun.options.sampling_options import Thinking
from specrun.views import answer_report, output

if TYPE_CHECKING:
    from specrun.views.answer_stream import AnswerView


_EMBEDDED = "the embedded pair"


@dataclass(frozen=True)
class Surroundings:
    """What a chat talks through. The name of a target is None for the embedded pair.

    read: gives the user's next message. Raises EOFError at the end of input, KeyboardInterrupt on Ctrl-C, and Ending
        where nobody is there to go on.
    """

    read: Callable[[], str]
    answers: Callable[[str | None], AnswerView]  # makes what shows the answers of the target with a name (on stdout)
    open_model: Callable[[str | None], Model]  # loads the target with a name
    keeper: Keeper | None = None  # keeps the conversation after each answer
    draft_of: Callable[[str | None], str | None] = lambda _: None  # the `--draft` that goes with the target of a name
    said: Sequence[str] = ()  # sentences about the model, which /stats shows


class ChatLoop(AbstractContextManager["ChatLoop"]):
    """One conversation with the target of a name. Use it in a `with` statement: it holds the model.

    request: how answers are written; its prompt is ignored. think: as `--think` has it.
    exit_code: that of the last error that a line ended with; 0 where there was none.

    Making one raises the errors of `open_model`, and ModelFileError for a broken chat template.
    """

    def __init__(self, target: str | None, request: Request, around: Surroundings, think: Thinking = "show") -> None:
        self._around = around
        self._open(target, request, think)
        self._last: Completion | None = None
        self._leaving = False
        self.exit_code = 0

    def _open(self, target: str | None, request: Request, think: Thinking) -> None:
        """Load a target and begin an empty conversation with it."""
        model = self._around.open_model(target)
        try:
            self._session = model.session(request)
        except BaseException:
            model.close()
            raise
        self.model = model  # the model that answers now
        self._target = target
        self._answers = self._around.answers(target)
        self._notices = answer_report.Notices(model, self._session)
        self._settings = commands.ChatSettings(model, self._session, think)

    def __exit__(self, *_: object) -> None:
        self.model.close()

    def begin(self, messages: list[Message], system: str | None) -> None:
        """Begin with a conversation. system: the system message; None leaves what the conversation has."""
        self._session.messages = messages
        if system is not None:
            self._session.system = system

    def run(self, first: str | None = None) -> None:
        """Run until /exit, the end of input, or two Ctrl-C in a row. Raises Ending on SIGTERM and SIGHUP.

        first: a message that is answered before any is read.
        """
        interrupted_before = False
        while not self._leaving:
            if is_ending():
                raise Ending
            try:
                message, first = first or self._around.read(), None
            except EOFError:
                return
            except Ending:
                raise
            except PromptError as error:
                self._refuse(error)
                continue
            except KeyboardInterrupt:
                if interrupted_before:
                    return
                self._note("press Ctrl-C again, or Ctrl-D, to leave")
                interrupted_before = True
                continue
            interrupted_before = False
            try:
                if commands.is_command(message):
                    self._command(message)
                elif message.strip():
                    self._answer(*self._session.prepare(message))
            except SpecrunError as error:
                self._refuse(error)
            except Ending:
                raise
            except KeyboardInterrupt:  # the second while an answer ends, or one during a command
                self._note("stopped")

    def _refuse(self, error: SpecrunError) -> None:
        self.exit_code = error.exit_code
        output.stderr.print(Text(one_line(without_secrets(str(error))), style="red"))

    def _answer(self, completion: Completion, n_dropped: int) -> None:
        if n_dropped:
            dropped = "turn was" if n_dropped == 1 else f"{n_dropped} turns were"
            self._note(f"the context is full: the oldest {dropped} dropped")
        # Writing to a terminal that has gone fails before SIGHUP comes. The signal must not stop what then keeps the
        # answer.
        with held():
            keep_what_is_there = interrupts.undone(lambda: self._keep(completion) if completion.token_ids else None)
            try:
                with InterruptFlag() as interrupted, without_echo(), keep_what_is_there:
                    shows_thinking = self._settings.think == "show"
                    self._answers(self._session.read(completion, interrupted), completion, shows_thinking)
            except BaseException:
                # A failed pass, a second Ctrl-C: what was written stays, as it does on the screen.
                if completion.token_ids:
                    self._keep(completion)
                else:
                    self._session.take_back()
                raise
            self._keep(completion)
        answer = self._session.messages[-1]["content"]
        full = "the context is full: the answer was cut off; use /clear, or a chat with a larger --ctx-size"
        for line in [answer_report.one_line(completion), *self._notices.after(completion, answer, full)]:
            self._note(line)

    def _keep(self, completion: Completion) -> None:
        """Make an answer, whole or not, a part of the conversation, here and on disk."""
        self._session.keep(completion)
        self._last = completion
        self._keep_on_disk()

    def _keep_on_disk(self, takes_back: bool = False) -> None:
        """Keep the conversation as it is now. takes_back: see `Keeper.keep`."""
        try:
            if self._around.keeper:
                self._around.keeper.keep(self._conversation, takes_back)
        except SpecrunError as error:
            self._note(f"{'/load still has it' if takes_back else '--continue will not find this'}: {error}")

    @property
    def _conversation(self) -> LastConversation:
        return LastConversation(self._target, self._session.messages, self._around.draft_of(self._target))

    def _note(self, text: str) -> None:
        output.stderr.print(Text(visible(text), style="dim"))

    def _command(self, message: str) -> None:
        name, argument = commands.parse(message)
        match name:
            case "/help":
                output.stderr.print(Text(commands.help_text()))
            case "/system" if not argument:
                there_is = f"{self._session.system}\n(/system none removes it)" if self._session.system else "none"
                self._note(f"system message: {there_is}")
            case "/system":
                self._session.system = None if argument == commands.NO_SYSTEM else argument
                self._note("system message set" if self._session.system else "system message removed")
                self._keep_on_disk()
            case "/model":
                self._change_model(argument)
            case "/regen":
                if again := self._session.regenerate():
                    self._answer(*again)
                else:
                    self._note("there is no message to answer yet")
            case "/undo":
                self._note("forgotten" if self._session.undo() else "nothing to undo")
                self._keep_on_disk(takes_back=True)
            case "/clear":
                self._session.clear()
                self._note("conversation forgotten")
                self._keep_on_disk(takes_back=True)
            case "/set" if not argument:
                output.stderr.print(Text(str(self._settings)))
            case "/set":
                setting, value = commands.parse_setting(argument)
                if value or setting not in commands.SETTINGS:
                    self._settings.change(setting, value)
                self._note(f"{setting} is {self._settings.values()[setting]}")
            case "/stats":
                self._note(answer_report.as_text(self._last, self.model) if self._last else "no answer yet")
                for sentence in self._around.said:
                    self._note(sentence)
            case "/tree":
                if drafted := self._last.last_drafted if self._last else None:
                    names = partial(self.model.llama_model.token_bytes, special=True)
                    output.stderr.print(answer_report.pass_tree(drafted, names))
                else:
                    self._note("no token tree was drafted for the last answer")
            case "/think":
                self._note(self._session.thinking or "nothing was thought")
            case "/save":
                path = _path(argument)
                if path.is_file():
                    conversation_file.read(path)  # raises for a file that is something else
                conversation_file.save(path, self._conversation)
                self._note(f"saved to {argument}")
            case "/load":
                self._load(argument)
            case "/exit":
                self._leaving = True

    def _load(self, argument: str) -> None:
        kept = conversation_file.kept()
        if not argument:
            output.stderr.print(_conversations(kept) if kept else Text("no conversation was kept yet", style="dim"))
            return
        is_number = argument.isdecimal() and 1 <= int(argument) <= len(kept)
        path = kept[int(argument) - 1] if is_number else _path(argument)
        loaded = conversation_file.read(path)
        self._session.messages = loaded.messages
        self._note(f"loaded {counted(len(loaded.messages), 'message')}")
        if self._around.keeper:
            self._around.keeper.go_on_with(loaded if path in kept else None)
            self._keep_on_disk()

    def _change_model(self, name: str) -> None:
        """Go on with another model. The present model is freed first, as both may not fit; it comes back on failure."""
        if not name:
            output.stderr.print(_models(local_models(), self._target))
            return
        models = [*(model.name for model in local_models()), None]
        chosen = models[int(name) - 1] if name.isdecimal() and 1 <= int(name) <= len(models) else name
        before, messages = self._target, self._session.messages
        request, think = self._session.request, self._settings.think
        self.model.close()
        try:
            self._open(chosen, request, think)
        except BaseException:
            self._leaving = True  # if this fails, too, nothing is there to go on with
            self._open(before, request, think)
            self._leaving = False
            raise
        finally:
            self._session.messages = messages
        self._last = None
        self._keep_on_disk()
        self._note(f"{self.model.llama_model.name} answers from now on")


def _path(argument: str) -> Path:
    if not argument:
        raise UsageError("no file is given; name a file after the command")
    try:
        return Path(argument).expanduser()
    except RuntimeError as error:
        raise UsageError(f"there is no such user as in {argument}; give the whole path") from error


def _models(found: Sequence[LocalModel], current: str | None) -> Table:
    """A table of the models and, last, the embedded pair. The model with the name `current` is marked as in use."""
    rows = [(model.name, size_text(model.n_bytes), model.program or "") for model in found] + [(_EMBEDDED, "", "")]
    in_use = _EMBEDDED if current is None else current
    return _numbered((one_line(name), size, "in use" if name == in_use else program) for name, size, program in rows)


def _conversations(paths: Sequence[Path]) -> Table:
    """A table: when each was written, with which model, how many messages it has, and the last question."""
    rows: list[Sequence[str]] = []
    for path in paths:
        try:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
            one = conversation_file.read(path)
            rows.append((when, one.target or _EMBEDDED, counted(len(one.messages), "message"), one.question))
        except (OSError, SpecrunError) as error:
            rows.append(("", "", str(error)))
    return _numbered(rows)


def _numbered(rows: Iterable[Sequence[str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for number, row in enumerate(rows, start=1):
        table.add_row(str(number), *row)
    return table
