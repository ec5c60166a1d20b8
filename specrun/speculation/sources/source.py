"""The interface of draft sources, which guess the next tokens of a text without a draft model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that could be next."""

    token: int
    evidence: int  # class, from 0 to n_evidence - 1 of the source, for which `SourceSet` counts how often it is right


class Source(Protocol):
    """Guesses what follows a text. The same calls in the same order give the same guesses."""

    name: str  # for reports
    n_evidence: int  # number of classes of evidence

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to the text: first the prompt, then what each pass committed."""
        ...

    def reset(self) -> None:
        """A new text begins. What the source took from other texts stays."""
        ...

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """At most `count` (1 or more) distinct tokens that could follow the committed text and the drafted `path`, best
        first.
        """
        ...


class PathStates(Generic[State]):
    """A cache of a source's states after drafted paths; each follows from the state of the path one token shorter."""

    def __init__(self, start: State, step: Callable[[State, int], State]) -> None:
        """start: the state after the committed text. step: maps a state and the next token to the next state."""
        self._step = step
        self._states: dict[tuple[int, ...], State] = {(): start}

    def restart(self, start: State) -> None:
        """The committed text has changed; `start` is the state after it."""
        self._states = {(): start}

    def after(self, path: Sequence[int]) -> State:
        """The state after `path`."""
        key = tuple(path)
        state = self._states.get(key)
        if state is None:
            state = self._step(self.after(key[:-1]), key[-1])
            self._states[key] = state
        return state


def last_tokens(text: Sequence[int], path: Sequence[int], count: int) -> tuple[int, ...]:
    """The last `count` tokens (or all, if there are fewer) of a committed text followed by a drafted path."""
    missing = count - len(path)
    if missing <= 0:
        return tuple(path[len(path) - count :])
    return (*text[max(len(text) - missing, 0) :], *path)
