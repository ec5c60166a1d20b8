"""What a shell offers where a model or a method is typed. Where none of them fits, the shell offers files by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from specrun.errors import SpecrunError


def targets(incomplete: str) -> list[tuple[str, str]]:
    """Names of models that begin so, each with a word about it: those on this machine, then those of the catalog."""
    from specrun.catalog import embedded

    local = dict.fromkeys(here(incomplete), "on this machine")
    others = dict.fromkeys(fetchable(incomplete), "to download")
    demo = {embedded.NAME: "the demo pair"} if embedded.NAME.startswith(incomplete) else {}
    return list((local | others | demo | local).items())


def drafts(incomplete: str) -> list[tuple[str, str]]:
    """The same for drafts, which may also be none."""
    return [*targets(incomplete), *([("none", "no draft")] if "none".startswith(incomplete) else [])]


def fetchable(incomplete: str) -> list[str]:
    """Names of the catalog that begin so."""
    from specrun.catalog.entries import catalog

    return _beginning(incomplete, catalog)


def here(incomplete: str) -> list[str]:
    """Names of models on this machine that begin so."""
    from specrun.catalog.here import local_models

    return _beginning(incomplete, lambda: [model.name for model in local_models()])


def methods(incomplete: str) -> list[tuple[str, str]]:
    """Names of methods that begin so, each with the kind of what it drafts."""
    from specrun.speculation.registry import METHODS

    return [(name, method.kind) for name, method in METHODS.items() if name.startswith(incomplete)]


def _beginning(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """The names that begin so; none if they cannot be read: nobody could read a message while a shell completes."""
    with suppress(SpecrunError, OSError):
        return [name for name in names() if name.startswith(incomplete)]
    return []
