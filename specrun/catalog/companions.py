"""What is published beside the models of a family that can draft for them, and what specrun does with each."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.catalog.architectures import does

# By its name in models.toml.
COMPANIONS = {
    "sibling": "a small sibling", "assistant": "an assistant", "mtp": "MTP layers", "eagle3": "an EAGLE-3 head",
    "dflash": "a DFlash head", "dspark": "a DSpark head",
}  # fmt: skip


def runs(companion: str, architecture: str | None) -> bool:
    """Whether specrun can draft with one of COMPANIONS for a target of this architecture."""
    match companion:
        case "sibling":
            return True
        case "assistant":
            return does("gives_cache", architecture)
        case "mtp":
            return does("mtp", architecture)
    return does("layer_inputs", architecture)


def how(companion: str, architecture: str | None) -> str:
    """What specrun does with a companion, and what to give for it."""
    if not runs(companion, architecture):
        return "specrun cannot draft with them" if companion == "mtp" else "specrun cannot draft with it"
    return "--draft mtp, if the file has them" if companion == "mtp" else "give its file as --draft"


def best_known(companions: Sequence[str], architecture: str | None) -> str | None:
    """The first of a family's companions, and what specrun does with it; None if the text itself drafts alone."""
    return f"{COMPANIONS[companions[0]]} ({how(companions[0], architecture)})" if companions else None
