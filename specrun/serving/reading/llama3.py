"""Calls of tools as Llama 3 writes them: the whole answer is {"name": ..., "parameters": {...}}, or several of them.

The control token <|python_tag|> may stand before them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from specrun.serving.reading.calls import CallReader
from specrun.serving.reading.deltas import Delta

PYTHON_TAG = "<|python_tag|>"


class Llama3Reader(CallReader):
    """Reads an answer that may be such calls. An object that names a tool other than `tools` is the answer itself."""

    def __init__(self, tools: Container[str]) -> None:
        super().__init__()
        self._tools = tools

    def _read(self) -> Iterator[Delta | None]:
        while (yield from self._follows("{", PYTHON_TAG)):
            if self._held.lstrip().startswith(PYTHON_TAG):
                self._skip(PYTHON_TAG)
                continue
            if not (yield from self._read_json(self._tools)):
                break
            yield from self._skip_blanks("; \n")
        yield from super()._read()
