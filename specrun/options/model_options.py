"""The options that name the two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer


def _option(*names: str, **values: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Models", **values)


Target = Annotated[
    str | None,
    _option(
        "--target",
        "-m",
        envvar="SPECRUN_TARGET",
        metavar="MODEL",
        help="Whose text you want: a name of `specrun models list`, org/repo:QUANT, or a GGUF file. "
        "Without it: the embedded demo pair.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class ModelOptions:
    """As the user gave them. target None is the embedded pair; draft None is the one that belongs to the target."""

    target: Target = None
    draft: Annotated[
        str | None,
        _option(
            "--draft",
            "-md",
            envvar="SPECRUN_DRAFT",
            metavar="MODEL",
            help="A small model with the same tokenizer; none does without. By default the one the catalog recommends.",
            show_default=False,
        ),
    ] = None
    pull: Annotated[bool, _option("--pull", "--yes", "-y", help="Fetch missing models without asking.")] = False
