"""What the layers of a model keep of a text: a KV cache, a recurrent state as in Mamba, or both, and its bytes; and
which pages of a model's files hold which layer's weights, and which hold the experts of a mixture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from specrun.catalog.entries import does
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import TensorInfo, is_expert, layer_of, type_named
from specrun.llama_settings import ALL_LAYERS, UNDECIDED, LlamaSettings

_FLOAT_BYTES = 4  # llama.cpp keeps recurrent states in float32
_RECURRENT = re.compile(r"blk\.(\d+)\.(ssm_|shortconv\.|time_mix_)")
_ATTENTION = re.compile(r"blk\.(\d+)\.attn_(k|kv_a_mqa|kv_b)\.weight")


def is_untried(file: GgufFile) -> bool:
    """Whether nobody has tried yet to roll back the states of this architecture."""
    return does("untried_states", file.architecture)


def recurrent_layers(file: GgufFile) -> frozenset[int]:
    """Indices of the layers that have a recurrent state, by the names of their tensors."""
    return _layers(file, _RECURRENT)


def layers_without_attention(file: GgufFile) -> frozenset[int]:
    """Indices of the recurrent layers that have no attention beside their state, and so no KV cache."""
    return recurrent_layers(file) - _layers(file, _ATTENTION)


def keeps_snapshots(file: GgufFile) -> bool:
    """Whether llama.cpp can keep several states of each pass of this architecture."""
    return does("snapshots", file.architecture) and bool(recurrent_layers(file))


def state_bytes(file: GgufFile) -> tuple[int, ...]:
    """Bytes of one recurrent state of each layer; 0 for a layer without one. As `llama_hparams` computes them."""
    layers = recurrent_layers(file)
    size = _FLOAT_BYTES * _floats(file) if layers else 0
    return tuple(size if layer in layers else 0 for layer in range(file.n_layers))


def kv_bytes_per_token(file: GgufFile, type_k: str = "f16", type_v: str = "f16") -> tuple[int, ...]:
    """Bytes of one token in the KV cache of each layer, with K and V in these ggml types.

    A recurrent layer without attention counts 0, and so does a head that reads the target's cache. A cache that several
    layers share is counted for each. Sliding windows do not make caches smaller, because specrun caches all tokens in
    their layers too (`swa_full`).
    """
    if does("reads_cache", file.architecture):
        return (0,) * file.n_layers
    # With multi-head latent attention (MLA) one cache holds K and V.
    is_mla = file.number("attention.key_length_mla") and file.number("attention.value_length_mla")
    sizes = []
    for count, n_k, n_v in cached_heads(file):
        size = type_named(type_k).row_bytes(n_k * count)
        sizes.append(size if is_mla else size + type_named(type_v).row_bytes(n_v * count))
    return tuple(sizes)


def cached_heads(file: GgufFile) -> list[tuple[int, int, int]]:
    """Of each layer the heads that it caches, or that a head's layer reads, and the numbers of one's key and value."""
    without = layers_without_attention(file)
    n_heads = _by_layer(file, "attention.head_count", 0)
    n_kv_heads = _by_layer(file, "attention.head_count_kv", -1)
    default = file.n_embd // n_heads[0] if n_heads and n_heads[0] else 0
    shapes = []
    for layer, (heads, kv_heads) in enumerate(zip(n_heads, n_kv_heads, strict=True)):
        suffix = "_swa" if slides(file, layer) else ""
        n_k, n_v = (
            file.number(f"attention.{part}_length{suffix}", file.number(f"attention.{part}_length", default))
            for part in ("key", "value")
        )
        shapes.append((0 if layer in without else heads if kv_heads < 0 else kv_heads, n_k, n_v))
    return shapes


def _floats(file: GgufFile) -> int:
    number = file.number
    if head := number("wkv.head_size"):
        return file.n_embd * (head + (number("token_shift_count") or 2))
    if taps := number("shortconv.l_cache"):
        return file.n_embd * (taps - 1)
    taps, inner, state = number("ssm.conv_kernel"), number("ssm.inner_size"), number("ssm.state_size")
    if head := number("kda.head_dim"):
        return 3 * max(taps - 1, 0) * file.n_heads * head + head * head * file.n_heads
    return max(taps - 1, 0) * (inner + 2 * number("ssm.group_count") * state) + state * inner


def _layers(file: GgufFile, pattern: re.Pattern[str]) -> frozenset[int]:
    matches = (pattern.match(tensor.name) for tensor in file.tensors)
    return frozenset(int(match[1]) for match in matches if match)


def _by_layer(file: GgufFile, key: str, default: int) -> list[int]:
    """One value per layer, of a key that holds either a single value or a list with one value per layer."""
    value = file.value(key)
    if isinstance(value, list):
        return [int(item) for item in value[: file.n_layers]] + [default] * (file.n_layers - len(value))
    return [value if isinstance(value, int) else default] * file.n_layers


def slides(file: GgufFile, layer: int) -> bool:
    """Whether the file says that this layer has sliding-window attention."""
    pattern = file.value("attention.sliding_window_pattern")
    return isinstance(pattern, list) and layer < len(pattern) and bool(pattern[layer])


_OUTPUT_PREFIX = "output"  # of the names of what is computed after the layers, which goes into VRAM with the first one


@dataclass(frozen=True, order=True)
class PageRange:
    """Consecutive whole pages of a file. The last page of a file may reach beyond its end."""

    file: int  # index of the file in `WeightPages.files`
    offset: int  # in bytes
    n_bytes: int

    @property
    def end(self) -> int:
        """Offset after the last page."""
        return self.offset + self.n_bytes


@dataclass(frozen=True)
class WeightPages:
    """All pages that hold weights in RAM, each of them once."""

    files: tuple[Path, ...]
    # For each layer in RAM, which are the first ones, the pages that hold only its weights, in file order.
    layers: tuple[tuple[PageRange, ...], ...]
    others: tuple[PageRange, ...]  # weights in RAM outside the layers, and pages that two layers share

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of each layer's own pages."""
        return tuple(n_bytes(pages) for pages in self.layers)


def n_bytes(ranges: Iterable[PageRange]) -> int:
    """Bytes of all ranges together."""
    return sum(pages.n_bytes for pages in ranges)


def weight_pages(file: GgufFile, page: int, with_mtp: bool = False, settings: LlamaSettings = UNDECIDED) -> WeightPages:
    """The pages of a model's weights in RAM. page: bytes of a page. Raises ModelFileError.

    with_mtp: whether MTP layers are loaded. They are computed while drafting, so they count as weights outside the
    layers; without, their pages are left out. settings: of which those matter that put layers into VRAM, whose pages
    nobody looks at again. A layer's tensors need not lie together, and may lie in several files.
    """

    def place(tensor: TensorInfo) -> tuple[int, int | None, bool]:
        return tensor.file, layer_of(tensor.name), is_in_ram(tensor, file, settings, with_mtp)

    layers: list[list[PageRange]] = [[] for _ in range(min(file.n_computed_layers, n_layers_in_ram(file, settings)))]
    others: list[PageRange] = []
    in_order = sorted(file.tensors, key=lambda tensor: (tensor.file, tensor.offset))
    for (index, layer, in_ram), run in groupby(in_order, place):
        if not in_ram:
            continue
        tensors = list(run)
        start, end = tensors[0].offset, tensors[-1].offset + tensors[-1].n_bytes
        first, last = -(-start // page) * page, end // page * page  # the whole pages
        if layer is None or layer >= len(layers) or last <= first:
            others.append(_outer(index, start, end, page))
            continue
        layers[layer].append(PageRange(index, first, last - first))
        edges = ((start, first), (last, end))
        others += [_outer(index, begin, stop, page) for begin, stop in edges if stop > begin]
    return WeightPages(file.shards, tuple(map(tuple, layers)), merged(others))


def n_layers_in_ram(file: GgufFile, settings: LlamaSettings) -> int:
    """How many layers these settings leave in RAM, the first ones of the model; experts may stay there of others."""
    n = file.n_layers + 1  # the output counts as a layer
    return 0 if settings.gpu_layers == ALL_LAYERS else min(max(n - (settings.gpu_layers or 0), 0), file.n_layers)


def is_in_ram(tensor: TensorInfo, file: GgufFile, settings: LlamaSettings, with_mtp: bool) -> bool:
    """Whether llama.cpp uses a tensor from the mapping of its file. with_mtp: as in `weight_pages`."""
    layer, n_cpu_moe = layer_of(tensor.name), settings.n_cpu_moe or 0
    if layer is None:
        return not (settings.gpu_layers and tensor.name.startswith(_OUTPUT_PREFIX))
    if layer >= file.n_computed_layers and not with_mtp:
        return False
    has_experts_in_ram = n_cpu_moe == ALL_LAYERS or layer < n_cpu_moe
    return layer < n_layers_in_ram(file, settings) or (has_experts_in_ram and is_expert(tensor.name))


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
class ExpertMatrix:
    """A tensor that holds a matrix of every expert of a layer, one after the other; experts may share pages."""

    pages: PageRange  # all that hold it, but those that are dense
    offset: int  # in the file
    expert_bytes: int  # of the matrix of one expert
    page: int  # bytes of a page

    def around(self, first: int, last: int) -> PageRange:
        """The pages that hold the matrices of the experts from `first` to `last`; empty if all of them are dense."""
        start = (self.offset + first * self.expert_bytes) // self.page * self.page
        end = -(-(self.offset + (last + 1) * self.expert_bytes) // self.page) * self.page
        return self._within(start, end)

    def own(self, expert: int) -> PageRange:
        """The pages that hold this expert's matrix and nothing else; may be empty."""
        start = -(-(self.offset + expert * self.expert_bytes) // self.page) * self.page
        end = (self.offset + (expert + 1) * self.expert_bytes) // self.page * self.page
        return self._within(start, end)

    def _within(self, start: int, end: int) -> PageRange:
        start, end = max(start, self.pages.offset), min(end, self.pages.end)
        return PageRange(self.pages.file, start, max(end - start, 0))


@dataclass(frozen=True)
class ExpertPages:
    """What of a mixture of experts lies in RAM."""

    files: tuple[Path, ...]
    n_experts: int  # of each layer
    # Of those layers that have experts the tensors that hold a matrix of every expert, expert after expert.
    layers: dict[int, list[TensorInfo]]
    dense: tuple[PageRange, ...]  # all pages that hold something else, which every token uses
    experts: tuple[PageRange, ...]  # all pages that hold experts; those at the edges may be dense as well
    page: int  # bytes of a page

    def matrices(self) -> list[list[ExpertMatrix]]:
        """The matrices of each of `layers`, in their order, but those that lie in dense pages alone."""
        found = [[self._matrix(tensor) for tensor in tensors] for tensors in self.layers.values()]
        return [[matrix for matrix in layer if matrix.pages.n_bytes] for layer in found]

    def _matrix(self, tensor: TensorInfo) -> ExpertMatrix:
        pages = _outer(tensor.file, tensor.offset, tensor.offset + tensor.n_bytes, self.page)
        start, end = pages.offset, pages.end
        for dense in self.dense:
            if dense.file == tensor.file and dense.offset <= start < dense.end:
                start = min(dense.end, end)
            if dense.file == tensor.file and dense.offset < end <= dense.end:
                end = max(dense.offset, start)
        inner = PageRange(tensor.file, start, end - start)
        return ExpertMatrix(inner, tensor.offset, tensor.n_bytes // self.n_experts, self.page)


def expert_pages(file: GgufFile, page: int, with_mtp: bool = False, settings: LlamaSettings = UNDECIDED) -> ExpertPages:
    """Where the experts in RAM of a model lie. page: bytes of a page. Raises ModelFileError.

    with_mtp, settings: as in `weight_pages`; the experts of MTP layers count as what every token uses.
    """
    layers: dict[int, list[TensorInfo]] = {}
    dense: list[PageRange] = []
    experts: list[PageRange] = []
    for tensor in file.tensors:
        if not is_in_ram(tensor, file, settings, with_mtp):
            continue
        pages, layer = _outer(tensor.file, tensor.offset, tensor.offset + tensor.n_bytes, page), layer_of(tensor.name)
        is_mtp = layer is not None and layer >= file.n_computed_layers
        # Biases and scales of experts are small, and old files split experts.
        is_of_all = len(tensor.shape) == 3 and tensor.shape[-1] == file.n_experts
        if is_mtp or layer is None or not is_expert(tensor.name) or not is_of_all:
            dense.append(pages)
            continue
        experts.append(pages)
        layers.setdefault(layer, []).append(tensor)
    in_order = dict(sorted(layers.items()))
    return ExpertPages(file.shards, file.n_experts, in_order, merged(dense), merged(experts), page)


def _outer(file: int, start: int, end: int, page: int) -> PageRange:
    """All pages that have bytes from `start` to `end`."""
    first = start // page * page
    return PageRange(file, first, -(-end // page) * page - first)
