"""Where the experts of a mixture lie in its files, and which pages hold everything else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import TensorInfo, read_header
from specrun.catalog.tensor_names import is_expert, layer_of
from specrun.catalog.weight_pages import PageRange, merged


@dataclass(frozen=True)
class ExpertTensor:
    """One matrix of every expert of a layer, one behind the other."""

    file: int  # index of the file in `ExpertPages.files`
    offset: int  # in bytes
    n_bytes: int  # of one expert


@dataclass(frozen=True)
class ExpertPages:
    """A mixture of experts on disk."""

    files: tuple[Path, ...]
    n_experts: int  # of each layer
    layers: dict[int, tuple[ExpertTensor, ...]]  # the experts of those layers that have any
    dense: tuple[PageRange, ...]  # all pages that hold something else, which every token uses
    experts: tuple[PageRange, ...]  # all pages that hold experts; those at the edges may be dense as well


def expert_pages(file: GgufFile, page: int, with_mtp: bool = False) -> ExpertPages:
    """Where the experts of a model lie. page: bytes of a page. Raises ModelFileError if a file cannot be read.

    with_mtp: whether MTP layers are loaded. All of their experts then count as what every token uses; without, their
    pages are left out.
    """
    layers: dict[int, list[ExpertTensor]] = {}
    dense: list[PageRange] = []
    experts: list[PageRange] = []
    for index, path in enumerate(file.shards):
        for tensor in read_header(path).tensors:
            pages = _outer(index, tensor.offset, tensor.n_bytes, page)
            layer = layer_of(tensor.name)
            is_mtp = layer is not None and layer >= file.n_computed_layers
            if is_mtp and not with_mtp:
                continue
            if is_mtp or layer is None or not is_expert(tensor.name) or not _is_of_all(tensor, file.n_experts):
                dense.append(pages)
                continue
            experts.append(pages)
            layers.setdefault(layer, []).append(ExpertTensor(index, tensor.offset, tensor.n_bytes // file.n_experts))
    by_layer = {layer: tuple(tensors) for layer, tensors in sorted(layers.items())}
    return ExpertPages(file.shards, file.n_experts, by_layer, merged(dense), merged(experts))


def _is_of_all(tensor: TensorInfo, n_experts: int) -> bool:
    """Whether a tensor holds a matrix of each expert; biases and scales are small, and old files split experts."""
    return len(tensor.shape) == 3 and tensor.shape[-1] == n_experts


def _outer(file: int, start: int, n_bytes: int, page: int) -> PageRange:
    first = start // page * page
    return PageRange(file, first, -(-(start + n_bytes) // page) * page - first)
