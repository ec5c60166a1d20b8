"""Options declared as the fields of a dataclass, for the commands that have them and for the Python API; what people
type who come from other tools: llama.cpp's names (`--n-predict`), Ollama's (`run`, `/bye`) or Python libraries'; and
what a shell offers where a model or a method is typed. Where none of them fits, the shell offers files by itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from specrun.errors import SpecrunError

# The name of an option here -> what else it is called.
OPTIONS: dict[str, tuple[str, ...]] = {
    "--target": ("--model", "-hf", "--hf-repo"),
    "--draft": ("--model-draft", "--draft-model", "-hfd", "--hf-repo-draft"),
    "--temp": ("--temperature",),
    "--max-tokens": ("--predict", "--n-predict", "--num-predict", "--max-new-tokens"),
    "--ctx-size": ("--ctx", "--num-ctx"),
    "--gpu-layers": ("--n-gpu-layers",),
    "--gpu-layers-draft": ("--n-gpu-layers-draft",),
    "--system": ("-sys", "--system-prompt"),
    "--depth": ("--draft-max", "--draft-n"),
    "--repeat-penalty": ("--repetition-penalty",),
    "--stop": ("--reverse-prompt",),
}

# Options of other tools that have none here -> what to do instead.
ELSEWHERE: dict[str, str] = {
    "--hf-file": "the file is named after its repository: --target org/repo/file.gguf",
    "--model-url": "--target takes an address of the Hugging Face hub",
    "--mlock": "--load-mode mlock keeps weights in memory",
    "--no-mmap": "--load-mode none reads weights into memory",
    "--verbose": "--stats shows statistics, and `specrun --debug` llama.cpp's log",
    "--slot-save-path": "conversations are kept on disk by themselves; `specrun doctor` says where",
    "--format": "--json writes a JSON object, --json-schema and --grammar constrain the answer",
    "--conversation": "`specrun chat` is a conversation",
    "--interactive": "`specrun chat` is a conversation",
    "--jinja": "the model's own chat template is always used; --chat-template names another",
}

# The name of a parameter with an impossible value -> what was probably meant.
VALUES: dict[str, str] = {"threads": "-t is the number of threads, and --temp the temperature"}

# A group of commands -> a name of one of them -> the words that mean it here.
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "specrun": {
        "run": ("chat",),
        "list": ("models", "list"),
        "ls": ("models", "list"),
        "show": ("models", "info"),
        "rm": ("models", "rm"),
        "download": ("pull",),
        "version": ("--version",),
    },
    "models": {
        "ls": ("list",),
        "show": ("info",),
        "remove": ("rm",),
        "delete": ("rm",),
        "download": ("pull",),
    },
}

# A command of a chat -> the command here.
CHAT_COMMANDS: dict[str, str] = {
    "/?": "/help",
    "/bye": "/exit",
    "/quit": "/exit",
    "/q": "/exit",
    "exit": "/exit",
    "quit": "/exit",
    "/reset": "/clear",
    "/new": "/clear",
    "/retry": "/regen",
    "/regenerate": "/regen",
    "/models": "/model",
}


def option_of(name: str) -> str:
    """The option that a name means, as `--temp` for `--temperature`; the name itself if nobody brings it along."""
    return next((option for option, others in OPTIONS.items() if name in others), name)


Result = TypeVar("Result")


def option(default: Any, metavar: str | None, text: str, *names: str, usual: bool = True, **further: Any) -> Any:
    """A field of a group that is an option named as the field is, `--batch-size` for `batch_size`.

    text: its help, of which `--help` shows the first sentence. names: what else it is called; all that it is called if
    a long name is among them. What people bring along from other tools is added. usual: whether `--help` shows it, and
    not `--help-all` alone. further: as typer.Option has it.
    """
    metadata = {"names": names, "metavar": metavar, "help": text, "hidden": not usual, **further}
    return field(default=default, metadata=metadata)


def flag(text: str, *names: str, **further: Any) -> Any:
    """A field that is a switch, off by default."""
    return option(False, None, text, *names, **further)


def argument(metavar: str, text: str, complete: Callable[[str], Any] | None = None) -> Any:
    """typer's argument. complete: gives what a shell offers for its beginning."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, autocompletion=complete)


def expanded(command: Callable[..., Result]) -> Callable[..., Result]:
    """The command for typer: a parameter that is a dataclass is replaced by one option for each field.

        @expanded
        def chat(prompt: str = "", *, machine: MachineOptions) -> None: ...

    The options have the annotations and defaults of the fields.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {}
    parameters = []
    for parameter in signature.parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += _options(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**values: Any) -> Result:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def with_options_of(group: Any) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorator for a function that takes options as `**options`: shows the options of the group in its signature."""

    def shown(function: Callable[..., Result]) -> Callable[..., Result]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *_options(group, with_help=False)]
        )
        return function

    return shown


def _options(group: Any, with_help: bool = True) -> list[inspect.Parameter]:
    """A parameter for every field. Its annotation is typer's option, or the bare type if not `with_help`."""
    hints, kind = get_type_hints(group), inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for entry in fields(group):
        hint, further = hints[entry.name], dict(entry.metadata)
        if with_help:
            names = further.pop("names")
            if not any(name.startswith("--") for name in names):
                names = (f"--{entry.name.strip('_').replace('_', '-')}", *names)
            brought = (other for name in names for other in OPTIONS.get(name, ()))
            hint = Annotated[hint, typer.Option(*names, *brought, **further)]
        parameters.append(inspect.Parameter(entry.name, kind, default=entry.default, annotation=hint))
    return parameters


def complete_targets(incomplete: str) -> list[tuple[str, str]]:
    """Names of models that begin so, each with a word about it: those on this machine, then those of the catalog."""
    from specrun.catalog import embedded

    local = dict.fromkeys(complete_here(incomplete), "on this machine")
    others = dict.fromkeys(complete_fetchable(incomplete), "to download") | {embedded.NAME: "the demo pair"}
    return [(name, about) for name, about in (local | others | local).items() if name.startswith(incomplete)]


def complete_drafts(incomplete: str) -> list[tuple[str, str]]:
    """The same for drafts, which may also be none."""
    return [*complete_targets(incomplete), *([("none", "no draft")] if "none".startswith(incomplete) else [])]


def complete_fetchable(incomplete: str) -> list[str]:
    """Names of the catalog that begin so."""
    from specrun.catalog.entries import catalog

    return _beginning(incomplete, catalog)


def complete_here(incomplete: str) -> list[str]:
    """Names of models on this machine that begin so."""
    from specrun.catalog.here import local_models

    return _beginning(incomplete, lambda: [model.name for model in local_models()])


def complete_methods(incomplete: str) -> list[tuple[str, str]]:
    """Names of methods that begin so, each with the kind of what it drafts."""
    from specrun.speculation.registry import METHODS

    return [(name, method.kind) for name, method in METHODS.items() if name.startswith(incomplete)]


def _beginning(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """The names that begin so; none if they cannot be read: nobody could read a message while a shell completes."""
    with suppress(SpecrunError, OSError):
        return [name for name in names() if name.startswith(incomplete)]
    return []
