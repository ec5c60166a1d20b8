"""specrun: exact speculative decoding with token trees on llama.cpp, for models that do not fit the GPU.

import specrun

with specrun.load("qwen-14b") as model:
    print(model.generate("Why is the sky blue?", max_tokens=200).text)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrun.errors import (
    ContextFullError,
    DraftSourceError,
    HubError,
    LlamaError,
    MissingModelError,
    ModelFileError,
    OutOfMemoryError,
    PairError,
    ProfileError,
    PromptError,
    SpecrunError,
    UsageError,
)

if TYPE_CHECKING:
    from specrun.engine.completion import Completion
    from specrun.engine.model import Model
    from specrun.engine.session import Session

__version__ = "0.1.0"
__all__ = [
    "Completion",
    "ContextFullError",
    "DraftSourceError",
    "HubError",
    "LlamaError",
    "MissingModelError",
    "Model",
    "ModelFileError",
    "OutOfMemoryError",
    "PairError",
    "ProfileError",
    "PromptError",
    "Session",
    "SpecrunError",
    "UsageError",
    "load",
]

_LAZY = {"Completion": "completion", "Model": "model", "Session": "session"}  # modules of specrun.engine


def load(target: str | Path | None = None, draft: str | Path | None = None, **options: Any) -> Model:
    """Load a model, to use in a `with` statement: `generate`, `stream` and `chat` write with it.

    target: a name of `specrun models list`, org/repo:QUANT or a GGUF file; None is the embedded pair.
    draft: a small model with the same tokenizer; None is the one that belongs to the target, "none" is none.
    options: the options of `specrun generate` under "Models", "Speculation" and "Machine", with underscores: `pull`,
        `speculate`, `method`, `budget`, `depth`, `ctx_size`, `threads`, `gpu_layers`, `exact`, ...

    What differs from what was asked for is said in `Model.notices`. Raises a SpecrunError, whose message says what to
    do, and TypeError for an unknown option.
    """
    from specrun.engine import model

    return model.load(target, draft, options)


def __getattr__(name: str) -> Any:
    """The classes that `load` gives, imported when they are asked for: they bring llama.cpp with them."""
    if name not in _LAZY:
        raise AttributeError(f"module 'specrun' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"specrun.engine.{_LAZY[name]}"), name)
