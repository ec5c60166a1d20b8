"""The pages of a model's weights: each page once, and a layer's pages, or those of experts, hold nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import is_expert, layer_of
from specrun.catalog.gguf_reader import read_header
from specrun.catalog.layer_states import PageRange, WeightPages, expert_pages, merged, n_bytes, weight_pages
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from tests.models import edited, random_llama, random_qwen3_moe, split

PAGE = 4096


def holders(file: GgufFile, page: int) -> dict[tuple[int, int], set[int | None]]:
    """By file and page number, the layers whose tensors have bytes in the page; the reference, tensor by tensor."""
    found: dict[tuple[int, int], set[int | None]] = {}
    for index, path in enumerate(file.shards):
        for tensor in read_header(path).tensors:
            for number in range(tensor.offset // page, -(-(tensor.offset + tensor.n_bytes) // page)):
                found.setdefault((index, number), set()).add(layer_of(tensor.name))
    return found


def numbers(ranges: tuple[PageRange, ...], page: int) -> list[tuple[int, int]]:
    return [(r.file, number) for r in ranges for number in range(r.offset // page, r.end // page)]


def check(pages: WeightPages, file: GgufFile, page: int) -> None:
    held = holders(file, page)
    listed = [number for ranges in (*pages.layers, pages.others) for number in numbers(ranges, page)]
    assert sorted(listed) == sorted(held), "every page with weights, once"
    for layer, ranges in enumerate(pages.layers):
        assert all(held[number] == {layer} for number in numbers(ranges, page))


@pytest.mark.parametrize("page", [4096, 16384])
def test_every_page_is_listed_once(tmp_path: Path, page: int) -> None:
    file = GgufFile.read(random_llama(tmp_path / "m.gguf", n_layer=5))
    pages = weight_pages(file, page)
    check(pages, file, page)
    assert len(pages.layers) == 5
    # Layers neither begin nor end at a page, so their edges are among the others.
    assert sum(pages.layer_bytes) < sum(file.layer_bytes)
    assert n_bytes(pages.others) > file.embedding_bytes + file.output_bytes


@pytest.mark.parametrize("gpu_layers", [1, 3, 5, ALL_LAYERS])
def test_of_layers_in_vram_no_page_is_listed_that_holds_nothing_else(tmp_path: Path, gpu_layers: int) -> None:
    file = GgufFile.read(random_llama(tmp_path / "m.gguf", n_layer=5))
    pages = weight_pages(file, PAGE, settings=LlamaSettings(gpu_layers=gpu_layers))
    n_in_ram = 6 - gpu_layers if gpu_layers > 0 else 0
    assert len(pages.layers) == min(n_in_ram, 5)
    wanted = set()
    for tensor in file.tensors:
        layer = layer_of(tensor.name)
        if tensor.name == "token_embd.weight" if layer is None else layer < n_in_ram:
            wanted |= set(range(tensor.offset // PAGE, -(-(tensor.offset + tensor.n_bytes) // PAGE)))
    listed = [number for ranges in (*pages.layers, pages.others) for _, number in numbers(ranges, PAGE)]
    assert sorted(listed) == sorted(wanted)


@pytest.mark.parametrize(("gpu_layers", "n_cpu_moe", "expected"), [(5, 2, 2), (5, ALL_LAYERS, 4), (3, 1, 2), (5, 0, 0)])
def test_only_experts_in_ram_are_listed(tmp_path: Path, gpu_layers: int, n_cpu_moe: int, expected: int) -> None:
    file = GgufFile.read(random_qwen3_moe(tmp_path / "m.gguf", n_layer=4))
    settings = LlamaSettings(gpu_layers=gpu_layers, n_cpu_moe=n_cpu_moe)
    pages = expert_pages(file, PAGE, settings=settings)
    assert list(pages.layers) == list(range(expected))
    everything = expert_pages(file, PAGE)
    assert n_bytes(pages.dense) < n_bytes(everything.dense)
    assert (n_bytes(pages.experts) < n_bytes(everything.experts)) == (expected < 4)


def test_layers_of_a_split_model_may_lie_in_two_files(tmp_path: Path) -> None:
    file = GgufFile.read(split(tmp_path / "m.gguf", random_llama(tmp_path / "one.gguf", n_layer=3), 4))
    pages = weight_pages(file, PAGE)
    check(pages, file, PAGE)
    assert any(len({part.file for part in layer}) == 2 for layer in pages.layers)


def test_pages_larger_than_a_layer_are_shared(tmp_path: Path) -> None:
    file = GgufFile.read(random_llama(tmp_path / "m.gguf", n_layer=2))
    pages = weight_pages(file, 2**20)
    assert not any(pages.layers)
    check(pages, file, 2**20)


def test_offsets_are_those_of_the_weights(tmp_path: Path) -> None:
    source = random_llama(tmp_path / "m.gguf")
    aligned = edited(tmp_path / "aligned.gguf", source, {"general.name": "x" * 1000})
    for tensor, again in zip(read_header(source).tensors, read_header(aligned).tensors, strict=True):
        data, other = source.read_bytes(), aligned.read_bytes()
        weights = data[tensor.offset : tensor.offset + tensor.n_bytes]
        assert weights == other[again.offset : again.offset + again.n_bytes]
    assert read_header(source).tensors[0].offset != read_header(aligned).tensors[0].offset


def test_ranges_that_touch_are_merged() -> None:
    ranges = [PageRange(1, 0, 2), PageRange(0, 4, 2), PageRange(0, 0, 2), PageRange(0, 1, 3), PageRange(0, 8, 1)]
    assert merged(ranges) == (PageRange(0, 0, 6), PageRange(0, 8, 1), PageRange(1, 0, 2))


@pytest.mark.parametrize("n_shards", [1, 4])
def test_every_page_of_a_mixture_is_dense_or_of_experts_or_both(tmp_path: Path, n_shards: int) -> None:
    path = random_qwen3_moe(tmp_path / "m.gguf", n_layer=3, n_expert=6)
    file = GgufFile.read(split(tmp_path / "s.gguf", path, n_shards) if n_shards > 1 else path)
    pages = expert_pages(file, PAGE)
    held: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
    for index, shard in enumerate(file.shards):
        for tensor in read_header(shard).tensors:
            first, last = tensor.offset // PAGE, -(-(tensor.offset + tensor.n_bytes) // PAGE)
            held[is_expert(tensor.name)] |= {(index, number) for number in range(first, last)}
    assert set(numbers(pages.dense, PAGE)) == held[False]
    assert set(numbers(pages.experts, PAGE)) == held[True]
    assert list(pages.layers) == [0, 1, 2]
    assert all(len(tensors) == 3 for tensors in pages.layers.values())
    n_bytes = sum(tensor.n_bytes for tensors in pages.layers.values() for tensor in tensors)
    assert n_bytes == sum(file.expert_bytes)


def test_a_dense_model_has_no_experts(tmp_path: Path) -> None:
    pages = expert_pages(GgufFile.read(random_llama(tmp_path / "m.gguf")), PAGE)
    assert (pages.layers, pages.experts, pages.n_experts) == ({}, (), 0)
