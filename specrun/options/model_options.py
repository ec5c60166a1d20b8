"""The options that name the two models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

_option = partial(typer.Option, rich_help_panel="Models", show_default=False)

# fmt: off
Target = Annotated[str | None, _option(
    "--target", "-m", envvar="SPECRUN_TARGET", metavar="MODEL",
    help="The large model whose text you want: a name listed by `specrun models list`, org/repo:QUANT, or a GGUF file. "
    "By default the embedded demo pair."
)]
# fmt: on


@dataclass(frozen=True)
class ModelOptions:
    """The options as the user gave them.

    target: None is the embedded pair. draft: None is the usual draft of the target (see `local_pair`), "none" is no
    draft. `specrun tune` also takes a comma-separated list.
    """

    target: Target = None
    # fmt: off
    draft: Annotated[str | None, _option(
        "--draft", "-md", envvar="SPECRUN_DRAFT", metavar="MODEL",
        help="A small model with the same tokenizer, a head that was trained for the target, mtp for the "
        "target's own MTP layers, or none; without --target: draft or eagle3. By default the fastest that "
        "`specrun tune` measured, else the draft that the catalog recommends."
    )] = None
    chat_template: Annotated[str | None, _option(
        "--chat-template", metavar="NAME|FILE",
        help="A chat template for the target: a Jinja file, or the name of a template of llama.cpp's, such as chatml. "
        "By default the model file's own."
    )] = None
    # fmt: on
    pull: Annotated[bool, _option("--pull", "--yes", "-y", help="Download missing models without asking.")] = False
