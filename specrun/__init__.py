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
    VerificationError,
)

if TYPE_CHECKING:
    from specrun.decoding.completion import Completion
    from specrun.decoding.session import Session
    from specrun.loading.model import Model

__version__ = "0.1.0"
__all__ = [
    "Completion",
    "ContextFullError",
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
    "VerificationError",
    "load",
]

_LAZY = ("Completion", "Model", "Session")  # each is in the module that has its name


def load(target: str | Path | None = None, draft: str | Path | None = None, **options: Any) -> Model:
    """Load a model. Use it in a `with` statement, and call its `generate`, `stream` and `chat`.

    target: a name listed by `specrun models list`, org/repo:QUANT, or a GGUF file. None loads the embedded pair.
    draft: a small model, best of its family, or a head. None is the catalog's draft for the target, "none" is no draft.
    options: the options of `specrun generate` under "Models", "Speculation" and "Machine", with underscores: `pull`,
        `speculate`, `method`, `budget`, `depth`, `ctx_size`, `threads`, `gpu_layers`, `exact`, ...

    `Model.notices` says where the model runs otherwise than the options asked. Raises a SpecrunError, whose message
    says what to do, and TypeError for an unknown option.
    """
    from specrun.loading import opening

    return opening.load(target, draft, options)


def __getattr__(name: str) -> Any:
    """Import the classes that use llama.cpp only when someone asks for them, so that `import specrun` is fast."""
    if name not in _LAZY:
        raise AttributeError(f"module 'specrun' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"specrun.{'loading' if name == 'Model' else 'decoding'}.{name.lower()}"), name)
