"""A mapped model file that was cut short, or whose disk fails: one line instead of a crash.

llama.cpp maps model files. Where the system cannot supply a page of a mapping any more, it sends SIGBUS to the thread
that reads it, which is in the middle of a pass. Nothing can be computed then.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from specrun import interrupts
from specrun.errors import LlamaError
from specrun.llama import library
from specrun.locations import file_bytes

_SIGBUS = getattr(signal, "SIGBUS", None)  # Windows has none
_BYTES: dict[str, int] = {}  # size of each model file in use before it was loaded


def watch(files: Iterable[Path]) -> None:
    """From now on a lost page of any of these files ends the process with one line."""
    for file in files:
        _BYTES[str(file)] = file_bytes(file)
    _install()


@cache
def _install() -> None:
    """Handle SIGBUS in C, as Python's own handlers only run when the operation that failed is over.

    Another program's handler, Python's faulthandler for example, stays.
    """
    if _SIGBUS is None:
        return
    install = ctypes.CDLL(None).signal
    install.restype = ctypes.c_void_p
    install.argtypes = [ctypes.c_int, ctypes.c_void_p]
    if before := install(_SIGBUS, ctypes.cast(_on_lost_page, ctypes.c_void_p)):
        install(_SIGBUS, before)


@ctypes.CFUNCTYPE(None, ctypes.c_int)  # type: ignore[untyped-decorator, unused-ignore]
def _on_lost_page(_signal: int) -> None:
    for path, n_bytes in _BYTES.items():
        if Path(path).exists() and file_bytes(Path(path)) < n_bytes:
            library.end_process(LlamaError(f"{path} was cut short while it was in use; download it again"))
    try:
        interrupts.report_sudden_end(
            "memory that is in use, or a part of a file, cannot be read any more; check the disk of the model, and "
            "with layers on a GPU its driver"
        )
    finally:
        # The operation fails again, this time as it would have done without this handler.
        ctypes.CDLL(None).signal(_SIGBUS, None)
