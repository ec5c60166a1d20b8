"""What a shell offers where a model or a method is typed. Where none of them fits, the shell offers files by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from specrun.errors import SpecrunError


def targets(incomplete: str) -> list[tuple[str, str]]:
    """Names of models that begin so, each with a word about it: those on this machine, then those of the catalog."""
    return [(name, about) for name, about in _models() if name.startswith(incomplete)]


def drafts(incomplete: str) -> list[tuple[str, str]]:
    """The same for drafts, which may also be none."""
    return [*targets(incomplete), *([("none", "no draft")] if "none".startswith(incomplete) else [])]


def fetchable(incomplete: str) -> list[str]:
    """Names of the catalog that begin so."""
    from specrun.catalog.entries import catalog

    return [name for name in catalog() if name.startswith(incomplete)]


def here(incomplete: str) -> list[str]:
    """Names of models on this machine that begin so."""
    from specrun.catalog.here import local_models

    return [model.name for model in local_models() if model.name.startswith(incomplete)]


def methods(incomplete: str) -> list[tuple[str, str]]:
    """Names of methods that begin so, each with the kind of what it drafts."""
    from specrun.speculation.registry import METHODS

    return [(name, method.kind) for name, method in METHODS.items() if name.startswith(incomplete)]


def _models() -> Iterator[tuple[str, str]]:
    from specrun.catalog import embedded

    local = {}
    with suppress(SpecrunError, OSError):  # nobody could read a message while a shell completes
        local = dict.fromkeys(here(""), "on this machine")
    yield from local.items()
    with suppress(SpecrunError, OSError):
        yield from ((name, "to download") for name in fetchable("") if name not in local)
    yield embedded.NAME, "the demo pair"
