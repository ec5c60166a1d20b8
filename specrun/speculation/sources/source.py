"""What a draft source is: something that knows, without a draft model, which tokens could follow a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that could be next. evidence: a class from 0 to below the source's `n_evidence`, a higher one for what
    is likelier to be right; what a calibration counts by.
    """

    token: int
    evidence: int


class Source(Protocol):
    """Guesses what follows a text. The same calls in the same order give the same guesses.

    name: for reports and options. n_evidence: how many classes of evidence its guesses come in.
    """

    name: str
    n_evidence: int

    def extend(self, tokens: Sequence[int]) -> None:
        """Newly committed text: first the prompt, then what each pass committed."""
        ...

    def reset(self) -> None:
        """A new text begins. What the source knows from elsewhere stays."""
        ...

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """What could follow the committed text and the drafted `path`, best first: distinct tokens, at most `count`,
        which is 1 or more.
        """
        ...


class PathStates(Generic[State]):
    """The states that drafted paths lead to, each from its parent's, until the committed text changes.

    start: the state after the committed text. step: from a state and the next token to the next state.
    """

    def __init__(self, start: State, step: Callable[[State, int], State]) -> None:
        self._step = step
        self._states: dict[tuple[int, ...], State] = {(): start}

    def restart(self, start: State) -> None:
        """The committed text has changed."""
        self._states = {(): start}

    def after(self, path: Sequence[int]) -> State:
        """The state after `path`; of most paths the parent's is known."""
        key = tuple(path)
        state = self._states.get(key)
        if state is None:
            state = self._step(self.after(key[:-1]), key[-1])
            self._states[key] = state
        return state


def last_tokens(text: Sequence[int], path: Sequence[int], count: int) -> tuple[int, ...]:
    """The last `count` tokens (all, if there are fewer) of a committed text with a drafted path behind it."""
    missing = count - len(path)
    if missing <= 0:
        return tuple(path[len(path) - count :])
    return (*text[max(len(text) - missing, 0) :], *path)
