"""The options that name the two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from specrun.locations import pasted
from specrun.options import completion
from specrun.options.expand import flag, option, spelled

_PANEL = "Models"

# fmt: off
Target = Annotated[str | None, spelled(
    "--target", "-m", envvar="SPECRUN_TARGET", metavar="MODEL", rich_help_panel=_PANEL, show_default=False,
    autocompletion=completion.targets,
    help="The large model whose text you want. A name listed by `specrun models list`, org/repo:QUANT, a GGUF file, "
    "or embedded for the demo pair, which is the default of all commands but chat and serve."
)]
# fmt: on


@dataclass(frozen=True)
class ModelOptions:
    """The options as the user gave them.

    target: None and "embedded" are the embedded pair. draft: None is the usual draft of the target (see `local_pair`),
    "none" is no draft. `specrun tune` also takes a comma-separated list.
    """

    target: Target = None
    # fmt: off
    draft: str | None = option(
        None, "MODEL", "The small model that drafts, or none. Best of the same family, a head that was trained for the "
        "target, or mtp for the target's own MTP layers; without --target: draft or eagle3. By default the fastest "
        "that `specrun tune` measured, else the draft that the catalog recommends.", "-md",
        envvar="SPECRUN_DRAFT", rich_help_panel=_PANEL, autocompletion=completion.drafts
    )
    chat_template: str | None = option(
        None, "NAME|FILE", "A chat template for the target: a Jinja file, or the name of a template of llama.cpp's, "
        "such as chatml. By default the model file's own.", usual=False, rich_help_panel=_PANEL
    )
    # fmt: on
    pull: bool = flag("Download missing models without asking.", "--yes", "-y", "--pull", rich_help_panel=_PANEL)

    def __post_init__(self) -> None:
        for name in ("target", "draft"):
            if value := getattr(self, name):
                object.__setattr__(self, name, pasted(value))
