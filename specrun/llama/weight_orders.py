"""Weights that lie in RAM twice: re-ordered for this CPU, and as they are in the file.

Re-ordered weights are computed faster in passes over a few tokens, and K-quants as they are in the file faster in large
passes, those over prompts and large trees (docs/adr/0017). llama.cpp looks where a tensor lies at the moment when it
computes with it, and takes the kernel for that memory. So between two passes the tensors are pointed to either memory:
three pointers of each, 0.05 ms for a model of a billion parameters.

llama.cpp's public header neither lists a model's tensors nor lets anybody move them, so what is used here of its build
is compared with what its functions and the file say before anything is changed. Whether passes then have the right bits
is checked once for each build (`facts.bits.check_orders`).
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp
import numpy as np
from llama_cpp._ggml import libggml

from specrun.catalog.gguf_header import TensorInfo, read_header
from specrun.errors import LlamaError

# std::vector<std::pair<std::string, ggml_tensor *>> & (const llama_model *), in the spelling and with the containers of
# libstdc++: 32 bytes of text, then the pointer.
_TENSORS = "_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model"
_PAIR_BYTES, _POINTER_AT = 40, 32
_REORDERED = b"CPU_REPACK"  # llama.cpp's name of memory with re-ordered weights


class Tensor(ctypes.Structure):
    """struct ggml_tensor in ggml.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p),
    )


_Memory = tuple[
    int, int, int | None
]  # where a tensor lies: llama.cpp's buffer, the address, re-ordered weights' kernel


class WeightOrders:
    """The re-ordered weights of a model, and the same weights in its files, which are mapped.

    n_tensors: how many llama.cpp has re-ordered.
    Raises LlamaError if this build of llama.cpp does not show where weights lie.
    """

    def __init__(self, model: Any, files: Sequence[Path], least: int) -> None:
        """model: llama.cpp's pointer to it. least: tokens of the smallest pass over weights as they are in the file."""
        self._least = least
        self._mappings: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self._in_file: bool | None = False  # None while it is changed: Ctrl-C may come between any two lines
        tensors = _tensors_of(model)
        self._places: list[tuple[Tensor, _Memory, _Memory]] = []  # re-ordered, in the file
        plain = next((tensor.buffer for tensor in tensors.values() if not _is_reordered(tensor)), None)
        if plain is None:
            return
        for path in files:
            mapping = _mapped(path)
            self._mappings.append(mapping)
            for info in read_header(path).tensors:
                tensor = tensors.get(info.name)
                if tensor is not None and _is_reordered(tensor):
                    _check(tensor, info)
                    own = tensor.buffer, tensor.data, tensor.extra
                    self._places.append((tensor, own, (plain, mapping.ctypes.data + info.offset, None)))

    @property
    def n_tensors(self) -> int:
        return len(self._places)

    def choose(self, n_tokens: int) -> None:
        """To be called before each pass, over so many tokens."""
        in_file = n_tokens >= self._least
        if in_file == self._in_file:
            return
        self._in_file = None
        for tensor, reordered, file in self._places:
            tensor.buffer, tensor.data, tensor.extra = file if in_file else reordered
        self._in_file = in_file


def _mapped(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8[n]: the file's bytes, read when they are used. They stay mapped as long as the array is there."""
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


@cache
def _functions() -> dict[str, Any]:
    """What is used of llama.cpp, by name. Raises LlamaError if this build lacks any of it."""
    ggml = ctypes.CDLL(libggml._name, handle=libggml._handle)
    libraries: dict[str, tuple[Any, Any]] = {
        _TENSORS: (llama_cpp.llama_cpp._lib, ctypes.c_void_p),
        "ggml_get_name": (ggml, ctypes.c_char_p),
        "ggml_get_data": (ggml, ctypes.c_void_p),
        "ggml_nbytes": (ggml, ctypes.c_size_t),
        "ggml_backend_buffer_get_type": (ggml, ctypes.c_void_p),
        "ggml_backend_buft_name": (ggml, ctypes.c_char_p),
    }
    found = {}
    for name, (library, result_type) in libraries.items():
        function = getattr(library, name, None)
        if function is None:
            raise LlamaError(f"this llama.cpp does not show where weights lie, as it lacks {name}")
        function.argtypes, function.restype = [ctypes.c_void_p], result_type
        found[name] = function
    return found


def _tensors_of(model: Any) -> dict[str, Tensor]:
    """All tensors of a model by their names. They are llama.cpp's own, not copies."""
    functions = _functions()
    begin, end, _ = (ctypes.c_void_p * 3).from_address(functions[_TENSORS](model))
    found = {}
    for pair in range(begin or 0, end or 0, _PAIR_BYTES):
        address = ctypes.c_void_p.from_address(pair + _POINTER_AT).value
        tensor = Tensor.from_address(address or 0)
        name = tensor.name
        if functions["ggml_get_name"](address) != name or functions["ggml_get_data"](address) != tensor.data:
            raise LlamaError("this llama.cpp keeps its tensors in another form than specrun knows")
        found[name.decode()] = tensor
    return found


def _is_reordered(tensor: Tensor) -> bool:
    functions = _functions()
    kind = functions["ggml_backend_buffer_get_type"](tensor.buffer)
    return bool(functions["ggml_backend_buft_name"](kind) == _REORDERED)


def _check(tensor: Tensor, info: TensorInfo) -> None:
    if not tensor.extra or _functions()["ggml_nbytes"](ctypes.addressof(tensor)) != info.n_bytes:
        raise LlamaError(f"llama.cpp's {info.name} is not the tensor of the file")
