"""llama.cpp's quantizer: copies a model with fewer bits per weight, or with fewer layers.

It runs for minutes in C, where Ctrl-C does not reach it, and a failed assertion in it ends the process. So
`specrun.making.make` runs `serve` in a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from specrun.errors import LlamaError
from specrun.llama import library
from specrun.processes import child_process

_MIB = 2**20
_MOST_BUFFERED = 1024 * _MIB  # bytes for the rows of a tensor as float32; llama.cpp's default is 8 GiB
_SIZE = re.compile(r"quant size\s*=\s*([\d.]+) MiB")
_LOG_PREFIX = re.compile(r"^llama_model_quantize: failed to quantize: ")


class _Size(logging.Handler):
    """Reads the size of the weights in bytes from the log, the only place where llama.cpp reports it."""

    n_bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        if match := _SIZE.search(record.getMessage()):
            self.n_bytes = round(float(match[1]) * _MIB)


def quantize(
    source: str, destination: str | None, file_type: int | None, dropped: Sequence[int], n_threads: int
) -> int:
    """Write a copy of a model as one file and return the bytes of its weights, rounded to a hundredth of a MiB.

    source: the GGUF file, or the first shard of a split model. destination: the file to write; None computes the size
    only. file_type: a llama_ftype; None keeps every weight as it is. dropped: indices of the layers to leave out.
    Raises LlamaError, and may leave an incomplete file then.
    """
    library.start()
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = n_threads
    params.allow_requantize = True
    params.only_copy = file_type is None
    params.dry_run = destination is None
    params.max_buf_size = _MOST_BUFFERED
    if file_type is not None:
        params.ftype = file_type
    if dropped:
        layers = (ctypes.c_int32 * (len(dropped) + 1))(*dropped, -1)  # -1 ends the list
        params.prune_layers = layers
    size = _Size()
    library.logger.addHandler(size)
    library.logger.setLevel(min(library.logger.getEffectiveLevel(), logging.INFO))
    with library.CapturedErrors() as errors:
        code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(destination or ""), ctypes.byref(params))
    library.logger.removeHandler(size)
    if code:
        raise LlamaError(_LOG_PREFIX.sub("", errors[-1]) if errors else f"the quantizer failed with code {code}")
    return size.n_bytes


def serve(request: str) -> None:
    """Run `quantize` with the arguments in `request`, which is JSON, and print `bytes` or `error` as JSON.

    The process ends early and deletes the file when its parent is gone.
    """

    def work(arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments.pop("debug"):
            library.show_log()
        return {"bytes": quantize(**arguments)}

    destination: str | None = json.loads(request)["destination"]
    child_process.reply(request, work, lambda: Path(destination).unlink(missing_ok=True) if destination else None)
