"""llama.cpp's quantizer: a copy of a model with fewer bits a weight, or with fewer layers.

It runs for minutes in C, where no Ctrl-C reaches it, and ends the process where an assertion of its fails. So `serve`
is what a process of its own does (see `specrun.making.quantizing`).
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from specrun.errors import LlamaError
from specrun.llama import library

_MIB = 2**20
_MOST_BUFFERED = 1024 * _MIB  # of a tensor's rows as float32: llama.cpp's own default is 8 GiB
_SIZE = re.compile(r"quant size\s*=\s*([\d.]+) MiB")
_LOG_PREFIX = re.compile(r"^llama_model_quantize: failed to quantize: ")


class _Size(logging.Handler):
    """Reads the size of the weights, in bytes, off the log, the one place where llama.cpp tells it."""

    n_bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        if found := _SIZE.search(record.getMessage()):
            self.n_bytes = round(float(found[1]) * _MIB)


def quantize(
    source: str, destination: str | None, file_type: int | None, dropped: Sequence[int], n_threads: int
) -> int:
    """Write a copy of the model `source` (the first shard of a split one) as one file. Returns the bytes of its
    weights, to a hundredth of a MiB.

    destination None: only find out the size. file_type: a llama_ftype; None keeps every weight as it is. dropped:
    indices of the layers to leave out. Raises LlamaError; a part of the file may be there then.
    """
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
    with library.captured_errors() as errors:
        code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(destination or ""), ctypes.byref(params))
    library.logger.removeHandler(size)
    if code:
        raise LlamaError(_LOG_PREFIX.sub("", errors[-1]) if errors else f"the quantizer failed with code {code}")
    return size.n_bytes


def serve(request: str) -> None:
    """Do what `request`, the arguments of `quantize` as JSON, says; print `bytes` or `error` as JSON.

    Ends early, without the file, when stdin is closed: whoever asked is gone.
    """
    arguments: dict[str, Any] = json.loads(request)
    if arguments.pop("debug"):
        library.show_log()
    threading.Thread(target=_end_with_stdin, args=(arguments["destination"],), daemon=True).start()
    try:
        print(json.dumps({"bytes": quantize(**arguments)}))
    except LlamaError as error:
        print(json.dumps({"error": str(error)}))


def _end_with_stdin(destination: str | None) -> None:
    os.read(0, 1)
    if destination is not None:
        Path(destination).unlink(missing_ok=True)
    os._exit(1)
