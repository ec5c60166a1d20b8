"""Options that several commands share, declared once as the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

Result = TypeVar("Result")


def expanded(command: Callable[..., Result]) -> Callable[..., Result]:
    """The command for typer: a parameter that is a dataclass is replaced by one option for each field.

        @expanded
        def chat(target: Target = None, *, machine: MachineOptions) -> None: ...

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


def with_options_of(*groups: Any) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorator for a function that takes options as `**options`: shows the options of the groups in its signature."""

    def shown(function: Callable[..., Result]) -> Callable[..., Result]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [option for group in groups for option in _options(group, with_help=False)]
        function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return function

    return shown


def _options(group: Any, with_help: bool = True) -> list[inspect.Parameter]:
    """A parameter for every field. Its annotation is typer's option, or the bare type if not `with_help`."""
    hints = get_type_hints(group, include_extras=with_help)
    empty = inspect.Parameter.empty
    defaults = {field.name: empty if field.default is MISSING else field.default for field in fields(group)}
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=defaults[name], annotation=hints[name]) for name in defaults]
