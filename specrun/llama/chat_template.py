"""Chat templates: the Jinja template of a GGUF file, and llama.cpp's own, which have names, such as chatml and llama3.

Jinja is rendered in a process of its own (specrun.processes.template_sandbox).
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict

import llama_cpp

from specrun.display_text import one_line
from specrun.errors import ModelFileError, PromptError, SpecrunError
from specrun.locations import encode
from specrun.processes.child_process import OWN_GROUP

ADVICE = "name another with --chat-template, or do without it in `specrun generate --raw`"
# -I keeps Python from importing modules of the same names from the current folder.
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from specrun.processes import template_sandbox; template_sandbox.serve()"
)
# What the process gets to see: the time zone, and where Python's libraries are.
_ENVIRONMENT = ("TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
_MOST_SECONDS = 20.0  # until an answer, on a machine that is busy with other things
_MOST_BYTES = 2**28  # of an answer
_LONGEST_REASON = 300  # characters
_FIRST_PRIVATE = 0xE000  # of the characters that Unicode leaves to everybody

CHATML = "chatml"  # what a model without a template of its own gets, as in llama-server


class _Turn(TypedDict):
    role: str  # system, user, assistant or tool
    content: str


class Message(_Turn, total=False):
    """One turn of a conversation. The keys besides role and content are those that chat templates know."""

    reasoning_content: str  # of an assistant's turn
    thinking: str  # the same, as gpt-oss's template calls it
    tool_calls: list[dict[str, Any]]  # of an assistant's turn
    tool_call_id: str  # of a tool's answer: the call that it is for
    name: str  # of a tool's answer: the tool


def prepare() -> None:
    """Start the process that the next template will need: it takes 0.06 s, in which a model can be loaded."""
    global _prepared
    if _prepared is None:
        _prepared = _Process()


class ChatTemplate:
    """Renders messages to a prompt in the format that a model was trained on. source: the template's text.

    The process that does it lives as long as this object. A template that takes too much time, memory or text fails.
    """

    def __init__(self, source: str, bos: str, eos: str) -> None:
        """source: the template. bos, eos: texts of these tokens. Raises ModelFileError if it is not valid Jinja."""
        self.source = source
        self._specials = {"bos_token": bos, "eos_token": eos}
        self._process: _Process | None = None
        self._start()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation, up to where the assistant's answer begins.

        tools: what the assistant may call, in OpenAI's shape. variables: further variables for the template, such as
        `enable_thinking`; they cannot replace those that are given here.

        Raises ModelFileError if the template fails or refuses the messages.
        """
        process = self._process or self._start()
        given = {"messages": list(messages), "add_generation_prompt": True, **self._specials}
        if tools:
            given["tools"] = list(tools)
        return self._asked(process, {**(variables or {}), **given}, "failed")

    def _start(self) -> _Process:
        global _prepared
        process, _prepared = _prepared or _Process(), None
        self._asked(process, {"source": self.source}, "is broken")
        return process

    def _asked(self, process: _Process, request: Mapping[str, Any], what: str) -> str:
        self._process = None  # an answer that nobody waits for any more, after Ctrl-C, must not be the next one's
        answer = process.ask(request)
        if process.is_alive:
            self._process = process
        if "error" in answer:
            reason = one_line(" ".join(str(answer["error"]).split()))[:_LONGEST_REASON].rstrip(".")
            raise ModelFileError(f"the chat template {what} ({reason}); {ADVICE}")
        return str(answer["text"])


class _Process:
    """The process. It ends when this object is gone, or specrun."""

    def __init__(self) -> None:
        """Raises SpecrunError if it cannot be started."""
        command = [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,  # Ctrl-C on the terminal is not for it
                creationflags=OWN_GROUP,
            )
        except OSError as error:
            raise SpecrunError(f"no process for the chat template can be started: {error.strerror}") from error
        self._end = weakref.finalize(self, _end, self._process)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request. If none comes in time, the process ends, and `error` says why."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return dict(json.loads(self._line()))
        except (BrokenPipeError, EOFError):
            code = self._process.wait()
            too_slow = hasattr(signal, "SIGXCPU") and code == -signal.SIGXCPU
            reason = "it computes for too long" if too_slow else f"its process ended with {code}"
        except (TimeoutError, ValueError) as error:
            reason = str(error)
        self._end()
        return {"error": reason}

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _line(self) -> bytes:
        """The next line of its stdout. A thread reads it, because pipes cannot be waited for on Windows."""
        stdout, answers = self._process.stdout, queue.SimpleQueue[bytes]()
        assert stdout
        threading.Thread(target=lambda: answers.put(stdout.readline(_MOST_BYTES)), daemon=True).start()
        try:
            line = answers.get(timeout=_MOST_SECONDS)
        except queue.Empty:
            raise TimeoutError(f"it took longer than {_MOST_SECONDS:.0f} s") from None
        if line.endswith(b"\n"):
            return line
        if len(line) < _MOST_BYTES:
            raise EOFError
        raise ValueError("it writes too much")


_prepared: _Process | None = None  # waits for its first template


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # first, because a thread may be reading what it writes
    process.wait()
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(BrokenPipeError):
            pipe.close()


class NamedTemplate:
    """Renders messages as `ChatTemplate` does, in a format that llama.cpp has in its code. It shows no tools.

    source: empty, as there is no Jinja text that could tell how a model calls tools or marks its reasoning.
    """

    source = ""

    def __init__(self, name: str) -> None:
        """name: one of `template_names()`."""
        self._name = name.encode()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),  # noqa: ARG002
        variables: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> str:
        """As `ChatTemplate.render`. Raises ModelFileError if llama.cpp refuses the messages, PromptError for messages
        that are not UTF-8.
        """
        # llama.cpp takes C strings, which end at a NUL; a character that no message has stands for it meanwhile.
        written = "".join(message["content"] for message in messages)
        nul = next(char for char in map(chr, range(_FIRST_PRIVATE, sys.maxunicode)) if char not in written)
        turns = [
            llama_cpp.llama_chat_message(
                message["role"].encode(), encode(message["content"].replace("\0", nul), "the message", PromptError)
            )
            for message in messages
        ]
        given = self._name, (llama_cpp.llama_chat_message * len(turns))(*turns), len(turns), True
        n = llama_cpp.llama_chat_apply_template(*given, None, 0)
        if n < 0:
            raise ModelFileError(
                f"llama.cpp's chat template {self._name.decode()} does not take these messages; {ADVICE}"
            )
        buffer = ctypes.create_string_buffer(n)
        llama_cpp.llama_chat_apply_template(*given, buffer, n)
        return buffer.raw.decode().replace(nul, "\0")


def template_names() -> list[str]:
    """The names of llama.cpp's own templates, in its order."""
    n = llama_cpp.llama_chat_builtin_templates(None, 0)
    found = (ctypes.c_char_p * n)()
    llama_cpp.llama_chat_builtin_templates(found, n)
    return [name.decode() for name in found if name]


def recognized(template: str) -> str | None:
    """The name of llama.cpp's template for the format of `template`, in whatever language that is; None if it has none.

    llama.cpp tells formats apart by the marks around messages, which stand in a template literally.
    """
    turns: list[Message] = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]

    def rendered(template: str) -> str | None:
        with suppress(ModelFileError):
            return NamedTemplate(template).render(turns)
        return None

    text = rendered(template)
    return next((name for name in template_names() if rendered(name) == text), None) if text else None
