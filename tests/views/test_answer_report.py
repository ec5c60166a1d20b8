"""The line at the start of a chat."""

from __future__ import annotations

from pathlib import Path

import specrun
from specrun.views.answer_report import chat_line


def test_the_line_at_the_start_of_a_chat_says_who_answers_and_who_drafts(script: Path) -> None:
    with specrun.load(None, threads=1) as model:
        assert chat_line(None, model, 0.0, None) == "the embedded pair: drafts by its draft where that pays"
    with specrun.load(script, threads=1) as model:
        way = "`specrun models make-draft x` makes one"
        assert chat_line(str(script), model, 0.0, way) == f"script.gguf: no draft; {way}"
        assert chat_line("ollama:x", model, 0.0, None) == "ollama:x: drafts from the text itself where that pays"
    with specrun.load(None, threads=1, speculate="tree", budget=8) as model:
        assert chat_line(None, model, 0.0, None) == "the embedded pair: drafts by its draft, tree of 8 nodes, 7 deep"
    with specrun.load(None, threads=1, speculate="off") as model:
        assert chat_line(None, model, 0.0, None) == "the embedded pair: no speculation"
    with specrun.load(None, threads=1, method="specinfer") as model:
        assert "a seed's text differs from plain decoding's" in chat_line(None, model, 0.8, None)
        assert "differs" not in chat_line(None, model, 0.0, None)
