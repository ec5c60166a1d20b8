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

from specrun.catalog.gguf_reader import read_header
from specrun.errors import LlamaError
from specrun.llama.shared_library import ggml

# std::vector<std::pair<std::string, ggml_tensor *>> & (const llama_model *), in the spelling and with the containers of
# libstdc++: 32 bytes of text, then the pointer.
_TENSORS = "_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model"
_PAIR_BYTES, _POINTER_AT = 40, 32
_USED = ("ggml_get_name", "ggml_get_data", "ggml_nbytes", "ggml_backend_buffer_get_type", "ggml_backend_buft_name")
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


_Memory = tuple[int, int, int | None]  # where a tensor lies: llama.cpp's buffer, address, re-ordered weights' kernel


class WeightOrders:
    """The re-ordered weights of a model, and the same weights in its files, which are mapped.

    places: the tensors that llama.cpp has re-ordered, and where they lie so and in the file.
    Raises LlamaError if this build of llama.cpp does not show where weights lie.
    """

    def __init__(self, model: Any, files: Sequence[Path], least: int) -> None:
        """model: llama.cpp's pointer to it. least: tokens of the smallest pass over weights as they are in the file."""
        self._least = least
        self._mappings: list[np.ndarray[Any, np.dtype[np.uint8]]] = []  # of the files, whose bytes are read when used
        self._in_file: bool | None = False  # None while it is changed: Ctrl-C may come between any two lines
        tensors = tensors_of(model)
        self.places: list[tuple[Tensor, _Memory, _Memory]] = []
        plain: Any = next((tensor.buffer for tensor in tensors.values() if not _is_reordered(tensor)), None)
        for path in files if plain is not None else ():
            with path.open("rb") as file:
                mapping = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
            self._mappings.append(mapping)
            for info in read_header(path).tensors:
                tensor = tensors.get(info.name)
                if tensor is None or not _is_reordered(tensor):
                    continue
                if not tensor.extra or ggml.ggml_nbytes(ctypes.addressof(tensor)) != info.n_bytes:
                    raise LlamaError(f"llama.cpp's {info.name} is not the tensor of the file")
                own = tensor.buffer, tensor.data, tensor.extra
                self.places.append((tensor, own, (plain, mapping.ctypes.data + info.offset, None)))

    def choose(self, n_tokens: int) -> None:
        """To be called before each pass, over so many tokens."""
        in_file = n_tokens >= self._least
        if in_file == self._in_file:
            return
        self._in_file = None
        for tensor, reordered, file in self.places:
            tensor.buffer, tensor.data, tensor.extra = file if in_file else reordered
        self._in_file = in_file


@cache
def _tensor_map() -> Any:
    """llama.cpp's function that gives a model's tensors. Raises LlamaError if this build lacks what is used here."""
    find: Any = getattr(llama_cpp.llama_cpp._lib, _TENSORS, None)
    lacking = [_TENSORS] if find is None else [name for name in _USED if not hasattr(ggml, name)]
    if lacking:
        raise LlamaError(f"this llama.cpp does not show where weights lie, as it lacks {lacking[0]}")
    find.argtypes, find.restype = [ctypes.c_void_p], ctypes.c_void_p
    return find


def tensors_of(model: Any) -> dict[str, Tensor]:
    """All tensors of a model by their names. They are llama.cpp's own, not copies."""
    begin, end, _ = (ctypes.c_void_p * 3).from_address(_tensor_map()(model))
    found = {}
    for pair in range(begin or 0, end or 0, _PAIR_BYTES):
        address = ctypes.c_void_p.from_address(pair + _POINTER_AT).value
        tensor = Tensor.from_address(address or 0)
        name = tensor.name
        if ggml.ggml_get_name(address) != name or ggml.ggml_get_data(address) != tensor.data:
            raise LlamaError("this llama.cpp keeps its tensors in another form than specrun knows")
        found[name.decode()] = tensor
    return found


def _is_reordered(tensor: Tensor) -> bool:
    return bool(ggml.ggml_backend_buft_name(ggml.ggml_backend_buffer_get_type(tensor.buffer)) == _REORDERED)
