"""The interface of draft sources, which guess the next tokens of a text without a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that could be next."""

    token: int
    evidence: int  # class, a place of the source's `prior`, for which `SourceSet` counts how often it is right


class Source(Protocol):
    """Guesses what follows a text. The same calls in the same order give the same guesses."""

    prior: NDArray[np.float64]  # the chance that a guess of each class of evidence is right, before any was counted

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to the text: first the prompt, then what each pass committed."""
        ...

    def reset(self) -> None:
        """A new text begins. What the source took from other texts stays."""
        ...

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """At most `count` (1 or more) distinct tokens that could follow the committed text and `path`, best first."""
        ...
