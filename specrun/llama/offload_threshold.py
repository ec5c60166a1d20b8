"""From how many tokens on passes copy weights that lie in RAM to the GPU, instead of multiplying them where they lie.

llama.cpp's GPU backends read it from the environment when they start, once a process. So it must be settled before
anything asks for devices or loads a model (`library.start`).
"""

from __future__ import annotations

import os

from specrun.errors import UsageError

DEFAULT = 32  # tokens; of llama.cpp's backends
VARIABLE = "GGML_OP_OFFLOAD_MIN_BATCH"

_started_with: int | None = None  # what the backends have read; None before they start


def in_use() -> int:
    """What the backends of this process have read, or will read, as far as its environment says."""
    return _of_environment() if _started_with is None else _started_with


def is_open() -> bool:
    """Whether the environment of this process leaves the choice to specrun."""
    return VARIABLE not in os.environ


def settle(wanted: int | None) -> None:
    """Choose the threshold for this process; None takes what there is. Raises UsageError if the backends have started
    with another threshold, with which times and bits would be others than those that were measured.
    """
    if wanted is None or wanted == in_use():
        return
    if _started_with is not None:
        raise UsageError(
            f"llama.cpp copies weights to the GPU in passes of {_started_with} tokens and more in this process, and "
            f"the model's profile needs {wanted}; set {VARIABLE}={wanted}"
        )
    os.environ[VARIABLE] = str(wanted)


def start() -> None:
    """Note that the backends start: from now on nothing can be chosen."""
    global _started_with
    if _started_with is None:
        _started_with = _of_environment()


def _of_environment() -> int:
    """What llama.cpp's atoi makes of the variable."""
    try:
        return int(os.environ.get(VARIABLE, DEFAULT))
    except ValueError:
        return 0
