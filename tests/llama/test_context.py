"""What becomes of a pass that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_cpp._ggml import libggml

from specrun.errors import LlamaError, OutOfMemoryError
from specrun.llama import LlamaModel
from specrun.llama.context import ContextConfig, LlamaContext


@pytest.mark.parametrize(
    ("code", "logged", "error", "said"),
    [
        (-2, b"alloc: allocating 9 MiB: cudaMalloc failed: out of memory", OutOfMemoryError, r"\(allocating 9 MiB: c"),
        (-2, b"", OutOfMemoryError, r"ran out of memory \(a pass got none\); try fewer"),
        (-3, b"error: Insufficient Memory (00000008)", OutOfMemoryError, r"\(Insufficient Memory"),
        (-3, b"failed to initialize graph", LlamaError, r"failed on a pass \(failed to initialize graph\)"),
    ],
)
def test_a_failed_pass(code: int, logged: bytes, error: type[LlamaError], said: str, random_model: Path) -> None:
    def fails(*_: Any) -> int:
        libggml.ggml_log_internal(4, b"%s\n", logged)
        return code

    with LlamaModel(random_model) as model, LlamaContext(model, ContextConfig(64, 1, 32, 8)) as context:
        with pytest.raises(error, match=said) as caught:
            context.compute(fails, None, "a pass")
        assert type(caught.value) is error
