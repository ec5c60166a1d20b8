"""What readers give out: additions to the answer, to its reasoning, and to its calls of tools."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CallDelta:
    """An addition to a call of a tool.

    index: which call of the answer, from 0. arguments: more of its JSON text.
    id, name: of a call that begins; None in every later addition to it.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Delta:
    """An addition to the text of the answer, to the reasoning before it, or to a call."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None


def content(text: str) -> list[Delta]:
    return [Delta(content=text)] if text else []


def reasoning(text: str) -> list[Delta]:
    return [Delta(reasoning=text)] if text else []


def undecided(text: str, markers: Sequence[str]) -> int:
    """Length of the longest tail of `text` that is the beginning, but not all, of a text in `markers`."""
    longest = max(map(len, markers), default=0)
    lengths = range(min(longest - 1, len(text)), 0, -1)
    return next((n for n in lengths if any(marker.startswith(text[-n:]) for marker in markers)), 0)


class Reader:
    """Reads an answer, which is all of the text; other readers find more in it.

    _read: reads the held text from the answer's beginning to its end. It yields what it tells, and None where it needs
        more text. _held: the text that came and was not read yet. _has_ended: whether nothing follows it. _is_cut:
        whether more would have followed, so that the beginning of a marker is a part of it and not text.
    """

    def __init__(self) -> None:
        self._held = ""
        self._has_ended = self._is_cut = False
        self._told = self._read()

    def _read(self) -> Iterator[Delta | None]:
        while True:
            yield from content(self._take(len(self._held)))
            yield None

    def push(self, text: str) -> list[Delta]:
        """What `text`, the next piece of the answer, adds."""
        self._held += text
        return list(iter(lambda: next(self._told), None))

    def finish(self, is_cut: bool = False) -> list[Delta]:
        """What is added once it is known that nothing follows. is_cut: whether the model had not ended there."""
        self._has_ended, self._is_cut = True, is_cut
        return self.push("")

    def parts(self, text: str) -> tuple[str, str]:
        """The answer and the reasoning in `text`, which is all that there is to read."""
        deltas = self.push(text) + self.finish()
        return "".join(delta.content for delta in deltas), "".join(delta.reasoning for delta in deltas)

    # The steps of which readers consist. Blanks are any white space.

    def _take(self, n: int) -> str:
        """The next `n` characters."""
        text, self._held = self._held[:n], self._held[n:]
        return text

    def _skip(self, tag: str) -> None:
        """Leave out blanks, and `tag` if it follows them."""
        self._held = self._held.lstrip().removeprefix(tag)

    def _skip_blanks(self, blanks: str | None = None) -> Iterator[None]:
        """Leave out all blanks, or all characters that are in `blanks`."""
        self._held = self._held.lstrip(blanks)
        while not (self._held or self._has_ended):
            yield None
            self._held = self._held.lstrip(blanks)

    def _follows(self, *tags: str) -> Generator[None, None, bool]:
        """Find out whether blanks, if any, and one of `tags` follow."""
        while not (begun := self._held.lstrip()).startswith(tags):
            may_follow = any(tag.startswith(begun) for tag in tags)
            if self._is_cut and may_follow and begun.startswith("<"):
                self._held = ""
            if self._has_ended or not may_follow:
                return False
            yield None
        return True

    def _tell_until(self, tell: Callable[[str], list[Delta]], *markers: str) -> Generator[Delta | None, None, bool]:
        """Tell the text before the first of `markers`, without the blanks in front of it, or all but the last blanks.

        Returns whether there was a marker. It is held then, after its blanks.
        """
        while True:
            at = min((at for at in map(self._held.find, markers) if at >= 0), default=None)
            n_undecided = 0 if self._has_ended and not self._is_cut else undecided(self._held, markers)
            n_before = len(self._held) - n_undecided if at is None else at
            yield from tell(self._take(len(self._held[:n_before].rstrip())))
            if self._has_ended and at is None:
                self._held = self._held[: len(self._held) - n_undecided]
            if at is not None or self._has_ended:
                return at is not None
            yield None


THINKING, THINKING_END = "<think>", "</think>"


class ThinkingReader(Reader):
    """Reads the reasoning at the beginning of an answer; the rest is for another reader.

    answer: reads what comes after the reasoning, or everything if there is none.
    is_open: whether the prompt ended with <think>, as some templates let it.
    """

    def __init__(self, answer: Reader, is_open: bool) -> None:
        super().__init__()
        self._answer = answer
        self._is_open = is_open

    def finish(self, is_cut: bool = False) -> list[Delta]:
        return super().finish(is_cut) + self._answer.finish(is_cut)

    def _read(self) -> Iterator[Delta | None]:
        if self._is_open or (yield from self._follows(THINKING)):
            if not self._is_open:
                self._skip(THINKING)
            yield from self._skip_blanks()
            yield from self._tell_until(reasoning, THINKING_END)
            self._skip(THINKING_END)
            yield from self._skip_blanks()
        while True:
            yield from self._answer.push(self._take(len(self._held)))
            yield None
