"""Renders chat templates in a process of its own. A template is a program, written by whoever made the model file.

Jinja's sandbox keeps a template from Python's internals, but not from counting to 10^10 or writing 'a' 10^10 times, in
one step that nothing inside the process can stop. So the process itself is limited: in memory, in computing time, and
to the files that it has open already. It gets no environment, hence no tokens.

The process reads requests and writes answers as lines of JSON; specrun/llama/chat_template.py is the other end.
"""

from __future__ import annotations

import contextlib
import encodings
import importlib
import json
import pkgutil
import sys
import time
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_BYTES = 2**29  # of memory, which Python itself takes a tenth of
MOST_SECONDS = 3  # of computing, for each answer; templates of real models take milliseconds
# A template may write this many characters for each character of a request, and so many more: the rest of specrun
# has to tokenize them, and real templates write a message once or twice.
_TIMES, _BESIDES = 4, 2**20


def serve() -> None:
    """Answer requests until stdin ends. The first one has the template's source, the others have its variables."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    _warm_up()
    _limit_process()
    sys.meta_path.clear()  # a codec that is not there is unknown, instead of a file that cannot be opened
    template: Template | None = None
    for line in sys.stdin:
        _limit_seconds()
        try:
            request = json.loads(line)
            if template is None:
                template = _environment().from_string(request["source"])
                answer = {"text": ""}
            else:
                answer = {"text": _rendered(template, request, _BESIDES + _TIMES * len(line))}
        except MemoryError:
            answer = {"error": f"it needs more than {MOST_BYTES >> 20} MiB of memory"}
        except Exception as error:  # it may fail in any way
            answer = {"error": str(error)[:1000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _warm_up() -> None:
    """Let Python and Jinja import what they import late, while files can still be opened: for filters such as
    `wordwrap`, for the codecs of `.encode()`, and for the names of characters.
    """
    environment = _environment()
    source = "{{ lipsum(1) }}{{ strftime_now('%B') }}{{ '\\N{BULLET}' }}{{ 1 + unknown }}"
    with contextlib.suppress(TemplateError):
        _rendered(environment.from_string(source), {}, _BESIDES)
    for name in environment.filters:
        with contextlib.suppress(Exception):  # some need arguments
            environment.call_filter(name, "a b")
    for codec in pkgutil.iter_modules(encodings.__path__):
        with contextlib.suppress(ImportError):  # two are Windows' own
            importlib.import_module(f"encodings.{codec.name}")


def _limit_process() -> None:
    """Bound the process's memory and what it can open. Windows has no such limits, and macOS no limit of memory."""
    if sys.platform == "win32":
        return
    import resource

    # No file and no socket can be opened besides stdin, stdout and stderr.
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 3, "RLIMIT_AS": MOST_BYTES}
    for name, most in limits.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (most, most))


def _limit_seconds() -> None:
    """Let the kernel end the process after MOST_SECONDS of computing; on Windows the other end only waits so long."""
    if sys.platform == "win32":
        return
    import resource

    seconds = int(time.process_time()) + 1 + MOST_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


class _Generation(Extension):
    """{% generation %} marks for training what the assistant wrote. Here it is only a block."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja has it

    def parse(self, parser: Parser) -> list[Node]:
        """What stands in the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as Hugging Face's transformers sets it up."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _tojson
    return environment


def _rendered(template: Template, variables: dict[str, Any], most: int) -> str:
    pieces, n_characters = [], 0
    for piece in template.generate(**variables):
        pieces.append(piece)
        n_characters += len(piece)
        if n_characters > most:
            raise TemplateError(f"it writes more than {most:,} characters")
    return "".join(pieces)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as transformers writes it: without the escapes for HTML that Jinja's own filter makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))
