"""Where experts lie: every page with weights is dense, or of experts, or both at an edge."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog.expert_pages import expert_pages
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import read_header
from specrun.catalog.tensor_names import is_expert
from specrun.catalog.weight_pages import PageRange
from tests.models import random_llama, random_qwen3_moe, split

PAGE = 4096


def numbers(ranges: tuple[PageRange, ...]) -> set[tuple[int, int]]:
    return {(r.file, number) for r in ranges for number in range(r.offset // PAGE, r.end // PAGE)}


@pytest.mark.parametrize("n_shards", [1, 4])
def test_every_page_is_known(tmp_path: Path, n_shards: int) -> None:
    path = random_qwen3_moe(tmp_path / "m.gguf", n_layer=3, n_expert=6)
    file = GgufFile.read(split(tmp_path / "s.gguf", path, n_shards) if n_shards > 1 else path)
    pages = expert_pages(file, PAGE)
    held: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
    for index, shard in enumerate(file.shards):
        for tensor in read_header(shard).tensors:
            first, last = tensor.offset // PAGE, -(-(tensor.offset + tensor.n_bytes) // PAGE)
            held[is_expert(tensor.name)] |= {(index, number) for number in range(first, last)}
    assert numbers(pages.dense) == held[False]
    assert numbers(pages.experts) == held[True]
    assert list(pages.layers) == [0, 1, 2]
    assert all(len(tensors) == 3 for tensors in pages.layers.values())
    n_bytes = 6 * sum(tensor.n_bytes for tensors in pages.layers.values() for tensor in tensors)
    assert n_bytes == sum(file.expert_bytes)


def test_a_dense_model_has_no_experts(tmp_path: Path) -> None:
    pages = expert_pages(GgufFile.read(random_llama(tmp_path / "m.gguf")), PAGE)
    assert (pages.layers, pages.experts, pages.n_experts) == ({}, (), 0)
