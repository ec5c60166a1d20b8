"""Which pages of a model's files hold which layer's weights, and which hold the experts of a mixture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import TensorInfo, is_expert, layer_of


@dataclass(frozen=True, order=True)
class PageRange:
    """Consecutive whole pages of a file. The last page of a file may reach beyond its end."""

    file: int  # index of the file in `WeightPages.files`
    offset: int  # in bytes
    n_bytes: int

    @property
    def end(self) -> int:
        """Offset behind the last page."""
        return self.offset + self.n_bytes


@dataclass(frozen=True)
class WeightPages:
    """All pages that hold weights, each of them once."""

    files: tuple[Path, ...]
    layers: tuple[tuple[PageRange, ...], ...]  # for each layer the pages that hold only its weights, in file order
    others: tuple[PageRange, ...]  # weights outside the layers, and pages that two layers share

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of each layer's own pages."""
        return tuple(n_bytes(pages) for pages in self.layers)


def n_bytes(ranges: Iterable[PageRange]) -> int:
    """Bytes of all ranges together."""
    return sum(pages.n_bytes for pages in ranges)


def weight_pages(file: GgufFile, page: int, with_mtp: bool = False) -> WeightPages:
    """The pages of a model's weights. page: bytes of a page. Raises ModelFileError.

    with_mtp: whether MTP layers are loaded. They are computed while drafting, so they count as weights outside the
    layers; without, their pages are left out. A layer's tensors need not lie together, and may lie in several files.
    """
    layers: list[list[PageRange]] = [[] for _ in range(file.n_computed_layers)]
    others: list[PageRange] = []
    in_order = sorted(file.tensors, key=lambda tensor: (tensor.file, tensor.offset))
    for (index, layer), run in groupby(in_order, lambda tensor: (tensor.file, layer_of(tensor.name))):
        if layer is not None and layer >= file.n_computed_layers and not with_mtp:
            continue
        tensors = list(run)
        start, end = tensors[0].offset, tensors[-1].offset + tensors[-1].n_bytes
        first, last = -(-start // page) * page, end // page * page  # the whole pages
        if layer is None or layer >= file.n_computed_layers or last <= first:
            others.append(_outer(index, start, end, page))
            continue
        layers[layer].append(PageRange(index, first, last - first))
        edges = ((start, first), (last, end))
        others += [_outer(index, begin, stop, page) for begin, stop in edges if stop > begin]
    return WeightPages(file.shards, tuple(map(tuple, layers)), merged(others))


def merged(ranges: Iterable[PageRange]) -> tuple[PageRange, ...]:
    """The same pages in file order, each of them once, in as few ranges as possible."""
    result: list[PageRange] = []
    for pages in sorted(ranges):
        if result and result[-1].file == pages.file and pages.offset <= result[-1].end:
            last = result.pop()
            pages = PageRange(last.file, last.offset, max(last.end, pages.end) - last.offset)
        result.append(pages)
    return tuple(result)


@dataclass(frozen=True)
class ExpertPages:
    """A mixture of experts on disk."""

    files: tuple[Path, ...]
    n_experts: int  # of each layer
    # Of those layers that have experts the tensors that hold a matrix of every expert, expert after expert.
    layers: dict[int, list[TensorInfo]]
    dense: tuple[PageRange, ...]  # all pages that hold something else, which every token uses
    experts: tuple[PageRange, ...]  # all pages that hold experts; those at the edges may be dense as well


def expert_pages(file: GgufFile, page: int, with_mtp: bool = False) -> ExpertPages:
    """Where the experts of a model lie. page: bytes of a page. Raises ModelFileError.

    with_mtp: as in `weight_pages`; the experts of MTP layers count as what every token uses.
    """
    layers: dict[int, list[TensorInfo]] = {}
    dense: list[PageRange] = []
    experts: list[PageRange] = []
    for tensor in file.tensors:
        pages, layer = _outer(tensor.file, tensor.offset, tensor.offset + tensor.n_bytes, page), layer_of(tensor.name)
        is_mtp = layer is not None and layer >= file.n_computed_layers
        if is_mtp and not with_mtp:
            continue
        # Biases and scales of experts are small, and old files split experts.
        is_of_all = len(tensor.shape) == 3 and tensor.shape[-1] == file.n_experts
        if is_mtp or layer is None or not is_expert(tensor.name) or not is_of_all:
            dense.append(pages)
            continue
        experts.append(pages)
        layers.setdefault(layer, []).append(tensor)
    return ExpertPages(file.shards, file.n_experts, dict(sorted(layers.items())), merged(dense), merged(experts))


def _outer(file: int, start: int, end: int, page: int) -> PageRange:
    """All pages that have bytes from `start` to `end`."""
    first = start // page * page
    return PageRange(file, first, -(-end // page) * page - first)
