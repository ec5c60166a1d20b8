"""Texts with long runs of one kind of characters are split, where llama.cpp would overflow a usual stack."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.errors import PromptError
from specrun.llama import LlamaModel
from specrun.llama.loaded_model import with_stack_for
from tests.models import edited

_SPLIT = """
import sys
from pathlib import Path
from specrun.llama import LlamaModel
with LlamaModel(Path(sys.argv[1])) as model:
    for character in "a1! ":
        tokens = model.tokenize(100_000 * character, add_special=False)
        assert b"".join(map(model.token_bytes, tokens)).decode() == 100_000 * character
"""


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["default", "tekken", "deepseek-llm"])
def test_a_long_run_is_split(tmp_path: Path, tokenizer: str) -> None:
    path = edited(tmp_path / "model.gguf", embedded.TARGET, {"tokenizer.ggml.pre": tokenizer})
    # In a process of its own, which an overflow would end.
    run = subprocess.run([sys.executable, "-c", _SPLIT, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run


def test_short_runs_need_no_thread() -> None:
    assert with_stack_for("word " * 10_000, threading.current_thread) is threading.current_thread()
    assert with_stack_for("w" * 10_000, threading.current_thread) is not threading.current_thread()
    assert threading.stack_size() == 0, "later threads have the usual stack"


def test_an_error_comes_out_of_the_thread() -> None:
    with pytest.raises(ZeroDivisionError):
        with_stack_for("w" * 10_000, lambda: 1 // 0)


def test_a_run_that_no_stack_is_large_enough_for_is_refused() -> None:
    with LlamaModel(embedded.TARGET) as model, pytest.raises(PromptError, match="run of 2000000 characters"):
        model.tokenize("7" * 2_000_000, add_special=False)
