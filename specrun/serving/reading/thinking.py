"""Models that think between <think> and </think> before they answer: Qwen3, QwQ, DeepSeek-R1 and others."""

from __future__ import annotations

from specrun.engine.text_stream import undecided
from specrun.serving.reading.deltas import Delta, Reader, reasoning

OPEN, CLOSE = "<think>", "</think>"


class ThinkingReader:
    """Reads the reasoning at the beginning of an answer; the rest is for another reader.

    answer: reads what comes after the reasoning, or everything if there is none.
    is_open: whether the prompt ended with <think>, as some templates let it.
    """

    def __init__(self, answer: Reader, is_open: bool) -> None:
        self._answer = answer
        self._is_open = is_open
        self._is_over = False
        self._said_any = False
        self._held = ""

    def push(self, text: str) -> list[Delta]:
        if self._is_over:
            return self._answered(text)
        self._held += text
        if not self._is_open:
            begun = self._held.lstrip()
            if begun.startswith(OPEN):
                self._is_open, self._held = True, begun[len(OPEN) :]
            elif OPEN.startswith(begun):
                return []
            else:
                self._is_over, self._said_any = True, True
                return self._answered(self._taken(len(self._held)))
        thought, marker, rest = self._held.partition(CLOSE)
        if marker:
            self._held = thought
            thinking = self._thought(len(thought.rstrip()))
            self._is_over, self._held = True, ""
            self._said_any = False
            return thinking + self._answered(rest)
        n_certain = len(self._held) - undecided(self._held, [CLOSE])
        return self._thought(len(self._held[:n_certain].rstrip()))

    def finish(self) -> list[Delta]:
        if self._is_over:
            return self._answer.finish()
        if self._is_open:
            return self._thought(len(self._held.rstrip()))
        return self._answer.push(self._held) + self._answer.finish()

    def _thought(self, n: int) -> list[Delta]:
        """The first `n` held characters as reasoning, without the blank lines that it begins with."""
        text = self._taken(n)
        if not self._said_any:
            text = text.lstrip()
        self._said_any = self._said_any or bool(text)
        return reasoning(text)

    def _answered(self, text: str) -> list[Delta]:
        """The answer begins at the first character behind the blank lines that follow the reasoning."""
        if not self._said_any:
            text = text.lstrip()
        self._said_any = self._said_any or bool(text)
        return self._answer.push(text) if text else []

    def _taken(self, n: int) -> str:
        text, self._held = self._held[:n], self._held[n:]
        return text
