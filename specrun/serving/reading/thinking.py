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
                self._is_over = self._said_any = True
                return self._answered(self._held)
        thought, marker, rest = self._held.partition(CLOSE)
        if marker:
            told = self._thought(len(thought.rstrip()))
            self._is_over, self._said_any = True, False
            return told + self._answered(rest)
        n_certain = len(self._held) - undecided(self._held, [CLOSE])
        return self._thought(len(self._held[:n_certain].rstrip()))

    def finish(self) -> list[Delta]:
        if self._is_over:
            return self._answer.finish()
        if self._is_open:
            return self._thought(len(self._held.rstrip()))
        return self._answer.push(self._held) + self._answer.finish()

    def _thought(self, n: int) -> list[Delta]:
        text, self._held = self._held[:n], self._held[n:]
        return reasoning(self._stripped(text))

    def _answered(self, text: str) -> list[Delta]:
        text = self._stripped(text)
        return self._answer.push(text) if text else []

    def _stripped(self, text: str) -> str:
        """`text` without the blank lines with which the reasoning, or the answer behind it, begins."""
        text = text if self._said_any else text.lstrip()
        self._said_any = self._said_any or bool(text)
        return text
