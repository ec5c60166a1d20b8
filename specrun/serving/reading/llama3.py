"""Calls of tools as Llama 3 writes them: the whole answer is {"name": ..., "parameters": {...}}, or several of them.

The control token <|python_tag|> may stand before them.
"""

from __future__ import annotations

from collections.abc import Container

from specrun.serving.reading.calls import Calls, JsonCall
from specrun.serving.reading.deltas import Delta, content

PYTHON_TAG = "<|python_tag|>"


class Llama3Reader:
    """Reads an answer that may be such calls. An object that names a tool other than `tools` is the answer itself."""

    def __init__(self, tools: Container[str]) -> None:
        self._tools = tools
        self._calls = Calls()
        self._call: JsonCall | None = None
        self._before = ""  # what the answer begins with if this is no call
        self._held = ""
        self._is_answer = False

    def push(self, text: str) -> list[Delta]:
        if self._is_answer:
            return content(text)
        self._held += text
        deltas: list[Delta] = []
        while self._held and not self._is_answer and self._read(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        if self._is_answer or (self._call and self._call.is_told):
            return []
        rest = self._before + (self._call.text if self._call else "") + self._held
        return content(rest.strip("; \n") if self._calls.n else rest)

    def _read(self, deltas: list[Delta]) -> bool:
        """Read some of the held text. Returns whether there may be more to read."""
        if self._call is None:
            return self._begin(deltas)
        self._held = self._call.push(self._held)
        name = self._call.name
        if self._call.is_none or (name is not None and name not in self._tools):
            self._fall_back(deltas, self._before + self._call.text + self._held)
            return False
        deltas += self._calls.read(self._call)
        if self._call.is_complete:
            self._call, self._before = None, ""
            return True
        return False

    def _begin(self, deltas: list[Delta]) -> bool:
        """Look what the answer, or what comes behind a call, begins with."""
        begun = self._held.lstrip("; \n" if self._calls.n else None)
        if begun.startswith("{"):
            n_before = len(self._held) - len(begun)
            self._before += self._held[:n_before]
            self._call, self._held = JsonCall(), begun
            return True
        if PYTHON_TAG.startswith(begun):
            return False
        if begun.startswith(PYTHON_TAG) and not self._before:
            # What follows, if it is no call, is the answer without the tag.
            self._held = begun[len(PYTHON_TAG) :]
            return True
        self._fall_back(deltas, self._before + (begun if self._calls.n else self._held))
        return False

    def _fall_back(self, deltas: list[Delta], text: str) -> None:
        deltas += content(text)
        self._is_answer, self._held = True, ""
