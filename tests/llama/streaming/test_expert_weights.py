"""A mixture whose experts the page cache reads as they are chosen gives the same bits, and all chosen ones are read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import ExpertPages, expert_pages
from specrun.errors import LlamaError
from specrun.hardware.residency import RingSettings
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import LlamaContext
from specrun.llama.streaming import address_space, gate, self_check
from specrun.llama.streaming.address_space import PAGE, CannotStreamError, mappings_of
from specrun.llama.streaming.expert_weights import ExpertWeights
from specrun.llama.streaming.weight_file import WeightFile
from specrun.speculation.tree import TokenTree
from tests.models import random_qwen3_moe, split
from tests.streams import CONFIG, context, written

N_USED = 2


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers of eight experts, of which a token uses two; a matrix of an expert has 8 KiB."""
    return random_qwen3_moe(tmp_path_factory.mktemp("mixture") / "m.gguf", n_layer=4, n_expert=8)


def pages_of(path: Path) -> ExpertPages:
    return expert_pages(GgufFile.read(path), PAGE)


@contextmanager
def reading(path: Path) -> Iterator[LlamaContext]:
    """A context whose experts are read as they are chosen."""
    with (
        LlamaModel(path) as model,
        ExpertWeights(pages_of(path), N_USED, RingSettings()) as weights,
        LlamaContext(model, CONFIG, weights) as made,
    ):
        self_check.read_experts(made, weights)
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("n_shards", [1, 3])
def test_every_pass_has_the_same_bits(tmp_path: Path, mixture: Path, n_shards: int) -> None:
    path = mixture if n_shards == 1 else split(tmp_path / "m.gguf", mixture, n_shards)
    with context(path) as plain:
        expected = written(plain)
    with reading(path) as streamed:
        assert streamed.weights
        held = streamed.weights.residency
        assert held.mode == "experts"
        assert held.streamed_bytes >= sum(GgufFile.read(path).expert_bytes)
        assert written(streamed) == expected
        assert streamed.weights.wait_seconds > 0
    assert not mappings_of(path)


@pytest.mark.slow
def test_only_what_was_read_is_used(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of all other experts may be anything."""
    chosen: dict[int, set[int]] = {}
    read = ExpertWeights._read

    def noted(weights: ExpertWeights, layer: int, counts: NDArray[np.int64]) -> None:
        chosen.setdefault(layer, set()).update(np.flatnonzero(counts).tolist())
        read(weights, layer, counts)

    monkeypatch.setattr(ExpertWeights, "_read", noted)
    pages = pages_of(mixture)
    with reading(mixture) as streamed:
        target = TargetContext(streamed)

        def one_pass() -> bytes:
            target.reset()
            target.set_prompt([5])
            return target.score(TokenTree.root_only(5)).tobytes()

        chosen.clear()
        expected = one_pass()
        assert {layer: len(experts) for layer, experts in chosen.items()} == dict.fromkeys(range(4), N_USED)
        (mapping,) = mappings_of(mixture)[:1]
        everything = {layer: set(range(8)) for layer in range(4)}
        for experts in ({layer: everything[layer] - chosen[layer] for layer in range(4)}, chosen):
            n_replaced = 0
            for layer, wanted in experts.items():
                for tensor in pages.layers[layer]:
                    n_bytes = tensor.n_bytes // pages.n_experts
                    for expert in wanted:
                        start = tensor.offset + expert * n_bytes
                        first, last = -(-start // PAGE) * PAGE, (start + n_bytes) // PAGE * PAGE
                        if last > first:
                            address_space.map_memory(mapping.address - mapping.offset + first, last - first)
                            n_replaced += 1
            assert n_replaced > 8
            assert (one_pass() == expected) == (experts is not chosen)


@pytest.mark.slow
def test_a_pass_of_several_tokens_reads_the_experts_of_all(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[NDArray[np.int64]] = []
    monkeypatch.setattr(ExpertWeights, "_read", lambda _, _layer, counts: chosen.append(counts))
    with reading(mixture) as streamed:
        target = TargetContext(streamed)
        target.set_prompt([5])
        chosen.clear()
        target.score(TokenTree.chain([5, 100, 200, 300, 400, 500, 600, 700]))
        assert len(chosen) == 4
        assert all(counts.shape == (8,) and counts.sum() == 8 * N_USED for counts in chosen)
        assert all(np.count_nonzero(counts) > N_USED for counts in chosen)


@pytest.mark.slow
def test_neighbours_are_asked_for_at_once_and_every_byte_of_them(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    with reading(mixture) as streamed:
        (mapping,) = mappings_of(mixture)[:1]
        monkeypatch.setattr(address_space, "expect_soon", lambda start, n_bytes: asked.append((start, n_bytes)))
        assert isinstance(streamed.weights, ExpertWeights)
        streamed.weights._read(2, np.array([1, 0, 0, 2, 1, 1, 0, 1]))
        assert len(asked) == 9, "three matrices of three runs"
        asked_bytes = {byte for start, n_bytes in asked for byte in range(start, start + n_bytes)}
        for tensor in pages_of(mixture).layers[2]:
            address = mapping.address - mapping.offset + tensor.offset
            for expert in (0, 3, 4, 5, 7):
                start = address + expert * tensor.n_bytes // 8
                assert asked_bytes.issuperset(range(start, start + tensor.n_bytes // 8))
    assert all(start % PAGE == 0 for start, _ in asked)


@pytest.mark.slow
def test_a_file_that_is_cut_short_is_an_error_instead_of_a_crash(tmp_path: Path, mixture: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(mixture, path)
    with reading(path) as streamed:
        target = TargetContext(streamed)
        target.set_prompt([5])
        os.truncate(path, path.stat().st_size // 3)
        with pytest.raises(LlamaError, match="was cut short"):
            target.score(TokenTree.chain([5, *range(100, 130)]))


@pytest.mark.slow
def test_what_cannot_be_read_so_is_refused_and_restored(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with context(mixture) as plain:
        expected = written(plain)

    def failing(*_: object) -> int:
        raise LlamaError("a read error")

    for patched, reason in (
        ((gate, "_RANKING", b"not in this graph"), "does not tell which experts it chose"),
        ((WeightFile, "read", failing), "reading them failed"),
    ):
        with monkeypatch.context() as patch, LlamaModel(mixture) as model:
            patch.setattr(*patched)
            before = mappings_of(mixture)
            with (
                pytest.raises(CannotStreamError, match=reason),
                ExpertWeights(pages_of(mixture), N_USED, RingSettings()) as weights,
                LlamaContext(model, CONFIG, weights) as made,
            ):
                self_check.read_experts(made, weights)
            assert mappings_of(mixture) == before
            with LlamaContext(model, CONFIG) as plain:
                assert written(plain) == expected
