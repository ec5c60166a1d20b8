"""A fact about llama.cpp, and whether it holds for the build that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specrun.errors import SpecrunError
from specrun.llama.known_checks import KnownCheck
from specrun.llama_settings import UNDECIDED, LlamaSettings

_found: dict[Fact, str | None] = {}  # of this process: why each fact that was asked for does not hold


@dataclass(frozen=True)
class Fact:
    """Something that specrun relies on, and llama.cpp does not promise.

    name: for people. relied_on: the fact, as a sentence. without: what happens without it, as a clause.
    check: returns why the fact does not hold, as a clause, or None if it holds. It gets settings of a context that
        decide no more than what the first context of a process decides for all of them, and may raise SpecrunError or
        OSError if it cannot be run.
    version: of the check; raise it when it changes.
    """

    name: str
    relied_on: str
    without: str
    check: Callable[[LlamaSettings], str | None]
    version: int = 1

    def notice(self, why: str) -> str:
        """The line for a user whose feature is off. why: as `why_not` returns it."""
        return f"{self.without}, because {why}"


def why_not(fact: Fact, settings: LlamaSettings = UNDECIDED, keeps: bool = True) -> str | None:
    """Why a fact does not hold for this build of llama.cpp, as a clause; None if it holds.

    The first time that a build is asked, the check runs. Its result is kept, except where it could not be run.
    settings: of the model that the feature is for. keeps: whether the result is kept for further runs.
    """
    if fact not in _found:
        known = KnownCheck(fact.name, fact.version)
        refusal = known.refusal()
        if refusal is None:
            try:
                refusal = fact.check(LlamaSettings(tiled=settings.tiled)) or ""
                if keeps:
                    known.keep(refusal)
            except (SpecrunError, OSError) as error:
                refusal = f"the check of llama.cpp's {fact.name} failed ({error})"
        _found[fact] = refusal or None
    return _found[fact]
