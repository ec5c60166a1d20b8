"""A mixture of whose experts some are kept in memory gives the same bits, and reads just what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import ExpertPages, expert_pages, merged, n_bytes
from specrun.errors import LlamaError
from specrun.hardware.memory import Pressure
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.streaming import address_space, cached_experts, gate, self_check
from specrun.llama.streaming.address_space import PAGE, CannotStreamError, PageMover, mappings_of
from specrun.llama.streaming.cached_experts import CachedExperts, ExpertCache
from specrun.llama.streaming.weight_file import HeldPages, WeightFile
from specrun.speculation.tree import TokenTree
from tests.hybrids import random_qwen35_moe
from tests.models import edited, random_qwen3_moe, split
from tests.other_caches import random_deepseek2, random_gpt_oss
from tests.streams import CALM, CONFIG, context, written

N_EXPERT, N_LAYER, N_USED = 8, 4, 2
ALL = float("inf")  # layers


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers of eight experts, of which a token uses two; a matrix of an expert has 8 KiB."""
    return random_qwen3_moe(tmp_path_factory.mktemp("mixture") / "m.gguf", n_layer=N_LAYER, n_expert=N_EXPERT)


@pytest.fixture(scope="module")
def expected(mixture: Path) -> list[bytes]:
    """What `written` gives through llama.cpp's mapping."""
    with context(mixture) as plain:
        return written(plain)


def pages_of(path: Path) -> ExpertPages:
    return expert_pages(GgufFile.read(path), PAGE)


def least(pages: ExpertPages) -> int:
    """Bytes of all that stays beside what experts have for themselves."""
    own = sum(sizes(pages))
    return n_bytes(merged([*pages.experts, *pages.dense])) - own


def sizes(pages: ExpertPages) -> list[int]:
    """Bytes that the experts of each layer have for themselves."""
    return [
        sum(matrix.own(expert).n_bytes for matrix in layer for expert in range(pages.n_experts))
        for layer in pages.matrices()
    ]


@contextmanager
def cached(
    path: Path, n_layers: float, pressure: Pressure = CALM, config: ContextConfig = CONFIG
) -> Iterator[tuple[LlamaContext, CachedExperts]]:
    """A context, and its experts, of which those of `n_layers` layers fit."""
    file, pages = GgufFile.read(path), pages_of(path)
    room = least(pages) + (int(max(sizes(pages)) * n_layers) if n_layers < ALL else sum(sizes(pages)))
    with (
        LlamaModel(path) as model,
        CachedExperts(pages, file.n_experts_used, room, pressure) as weights,
        LlamaContext(model, config, weights) as made,
    ):
        self_check.stream(made, weights)
        yield made, weights


def one_pass(made: LlamaContext) -> bytes:
    """The logits of a pass over 30 tokens after one."""
    target = TargetContext(made)
    target.reset()
    target.set_prompt([5])
    return target.score(TokenTree.chain([5, *range(100, 130)])).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("n_layers", [1, 1.5, 3, ALL])
def test_every_pass_has_the_same_bits(mixture: Path, expected: list[bytes], n_layers: float) -> None:
    with cached(mixture, n_layers) as (made, weights):
        used, found = weights.found
        assert written(made) == expected
        used, found = weights.found[0] - used, weights.found[1] - found
        assert used > 100
        assert (found == used) == (n_layers == ALL)
    assert not mappings_of(mixture)


@pytest.mark.slow
@pytest.mark.parametrize(("n_readers", "request_bytes"), [(1, PAGE), (4, HeldPages.request_bytes)])
def test_readers_and_requests_make_no_difference(
    mixture: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch, n_readers: int, request_bytes: int
) -> None:
    monkeypatch.setattr(HeldPages, "n_readers", n_readers)
    monkeypatch.setattr(HeldPages, "request_bytes", request_bytes)
    with cached(mixture, 1.5) as (made, _):
        assert written(made) == expected


@pytest.mark.slow
def test_fresh_memory_instead_of_moved_one_makes_no_difference(
    mixture: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PageMover, "move", lambda *_: False)
    with cached(mixture, 1.5) as (made, _):
        assert written(made) == expected


@pytest.mark.slow
@pytest.mark.parametrize("make", [random_deepseek2, random_gpt_oss, random_qwen35_moe], ids=lambda make: make.__name__)
def test_other_architectures_are_the_same(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Shared experts, a dense layer, biases of experts, and a hybrid."""
    path = make(tmp_path / "m.gguf")
    config = replace(CONFIG, n_seq_max=1)

    def logits(made: LlamaContext) -> list[bytes]:
        batches = [committed_tokens([7 * i, i + 1, 3], 3 * i, 1, n_outputs=2) for i in range(5)]
        return [made.decode(batch).tobytes() for batch in batches]

    with context(path, config) as plain:
        expected = logits(plain)
    with cached(path, 1, config=config) as (made, weights):
        assert logits(made) == expected
        assert weights.found[1] < weights.found[0]


@pytest.mark.slow
def test_experts_of_a_split_model_are_the_same(tmp_path: Path, mixture: Path, expected: list[bytes]) -> None:
    with cached(split(tmp_path / "m.gguf", mixture, 3), 1.5) as (made, _):
        assert written(made) == expected


@pytest.mark.slow
@pytest.mark.parametrize("n", [0, 1, 700, 2000])
def test_experts_may_begin_anywhere_in_a_page(tmp_path: Path, mixture: Path, n: int) -> None:
    """Other metadata move the weights to other places within their pages."""
    path = edited(tmp_path / "m.gguf", mixture, {"general.name": "x" * n})
    with context(path) as plain:
        expected = one_pass(plain)
    with cached(path, 1) as (made, _):
        assert [one_pass(made), one_pass(made)] == [expected] * 2


@pytest.mark.slow
def test_matrices_smaller_than_a_page_stay(tmp_path: Path) -> None:
    path = random_qwen3_moe(tmp_path / "m.gguf", n_layer=3, n_expert=8, n_ff=8)
    assert not any(sizes(pages_of(path)))
    with context(path) as plain:
        expected = one_pass(plain)
    with cached(path, 0) as (made, _):
        assert one_pass(made) == expected


def in_memory(path: Path, weights: CachedExperts) -> NDArray[np.bool_]:
    """bool[n_pages], the pages of experts that take memory, as the kernel says."""
    held: list[NDArray[np.bool_]] = []
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        for part in pages_of(path).experts:
            pagemap.seek(weights._memory.addresses[part] // PAGE * 8)
            entries = np.frombuffer(pagemap.read(part.n_bytes // PAGE * 8), np.uint64)
            held.append((entries >> np.uint64(63)).astype(np.bool_))
    return np.concatenate(held)


@pytest.mark.slow
@pytest.mark.parametrize("n_layers", [1, 2.5])
def test_no_more_memory_is_taken_than_there_is_room_for(mixture: Path, n_layers: float) -> None:
    pages = pages_of(mixture)
    shared = least(pages) - n_bytes(pages.dense)
    edges = n_bytes(pages.dense) + n_bytes(pages.experts) - n_bytes(merged([*pages.experts, *pages.dense]))
    with cached(mixture, n_layers) as (made, weights):
        for _ in range(3):
            written(made)
            budget = weights.residency.cache_bytes
            assert weights._cache.n_bytes <= budget
            assert int(in_memory(mixture, weights).sum()) * PAGE <= budget + shared + edges
            kept = [(i, j) for i, j in zip(*np.nonzero(weights._cache.kept), strict=True)]
            assert weights._cache.n_bytes == sum(m.own(j).n_bytes for i, j in kept for m in pages.matrices()[i])


@pytest.mark.slow
def test_what_is_dropped_takes_no_memory_and_what_is_kept_is_right(mixture: Path) -> None:
    pages = pages_of(mixture)
    with cached(mixture, 1.5) as (made, weights):
        written(made)
        data = mixture.read_bytes()
        for i, layer in enumerate(pages.matrices()):
            for matrix in layer:
                (part,) = [part for part in pages.experts if part.offset <= matrix.offset < part.end]
                shift = weights._memory.addresses[part] - part.offset
                for expert in range(N_EXPERT):
                    own = matrix.own(expert)
                    assert own.n_bytes
                    is_kept = weights._cache.kept[i, expert]
                    wanted = data[own.offset : own.end] if is_kept else bytes(own.n_bytes)
                    assert bytes(address_space.view(shift + own.offset, own.n_bytes)) == wanted


@pytest.mark.slow
def test_what_is_read_is_what_is_missing(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missed: list[tuple[int, list[int]]] = []
    choose = ExpertCache.choose

    def noted(cache: ExpertCache, layer: int, counts: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        missing, dropped = choose(cache, layer, counts)
        missed.append((layer, missing.tolist()))
        return missing, dropped

    places = pages_of(mixture).matrices()
    with cached(mixture, 1.5) as (made, weights):
        monkeypatch.setattr(ExpertCache, "choose", noted)
        read, (used, found) = weights.bytes_read, weights.found
        written(made)
        expected = 0
        for layer, experts in missed:
            for first, last in cached_experts.runs(np.array(experts)) if experts else ():
                parts = [matrix.around(first, last) for matrix in places[layer]]
                # The last page reaches beyond the end of the file.
                expected += sum(min(part.end, mixture.stat().st_size) - part.offset for part in parts)
        assert weights.bytes_read - read == expected
        assert sum(len(experts) for _, experts in missed) == weights.found[0] - used - (weights.found[1] - found) > 50


@pytest.mark.slow
def test_a_pass_of_several_tokens_reads_the_experts_of_all(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[NDArray[np.int64]] = []
    read = CachedExperts._read

    def noted(weights: CachedExperts, layer: int, counts: NDArray[np.int64]) -> None:
        chosen.append(counts)
        read(weights, layer, counts)

    monkeypatch.setattr(CachedExperts, "_read", noted)
    with cached(mixture, 1) as (made, _):
        target = TargetContext(made)
        target.set_prompt([5])
        chosen.clear()
        target.score(TokenTree.chain([5, 100, 200, 300, 400, 500, 600, 700]))
        assert len(chosen) == N_LAYER
        assert all(counts.shape == (N_EXPERT,) and counts.sum() == 8 * N_USED for counts in chosen)
        assert all(np.count_nonzero(counts) > N_USED for counts in chosen)


def test_a_layer_that_does_not_fit_is_refused(mixture: Path) -> None:
    with pytest.raises(CannotStreamError, match="experts of a layer do not fit"), cached(mixture, 0.99):
        pass


class ShortOfMemory(Pressure):
    """Memory is short before the second pass and all later ones, by so many bytes."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes, self.n_passes = n_bytes, 0

    def shortage(self) -> int:
        self.n_passes += 1
        return self.n_bytes if self.n_passes > 1 else 0


@pytest.mark.slow
def test_memory_that_runs_short_is_given_back_down_to_a_layer(mixture: Path, expected: list[bytes]) -> None:
    layer = max(sizes(pages_of(mixture)))
    with cached(mixture, 3, ShortOfMemory(layer // 3)) as (made, weights):
        before = weights.residency
        assert written(made) == expected
        after = weights.residency
        assert layer <= after.cache_bytes < before.cache_bytes == 3 * layer
        assert after.given_back_bytes > layer
        assert weights._cache.n_bytes <= after.cache_bytes
        assert after.notice
        assert "of experts stay" in after.notice


@pytest.mark.slow
def test_only_the_first_load_of_a_file_is_checked(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cached(mixture, 2):
        pass
    monkeypatch.setattr(self_check, "_logits", lambda _: pytest.fail("computed again"))
    with cached(mixture, 3):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["wrong bytes", "too late", "not told", "a read error"])
def test_what_cannot_be_cached_is_refused_and_restored(
    mixture: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    read, fetch = WeightFile.read, CachedExperts._read

    def wrong(file: WeightFile, into: memoryview, offset: int) -> int:
        n_read = read(file, into, offset)
        into[n_read // 2] ^= 0x40
        return n_read

    def failing(*_: object) -> int:
        raise LlamaError("a read error")

    def late(weights: CachedExperts, layer: int, counts: NDArray[np.int64]) -> None:
        if layer != 2:
            fetch(weights, layer, counts)

    patches: dict[str, tuple[object, str, object, str]] = {
        "wrong bytes": (WeightFile, "read", wrong, "gave other logits"),
        "too late": (CachedExperts, "_read", late, "gave other logits"),
        "not told": (gate, "_RANKING", b"not in this graph", "does not tell which experts it chose"),
        "a read error": (WeightFile, "read", failing, "reading ahead failed"),
    }
    place, name, instead, reason = patches[fault]
    with LlamaModel(mixture) as model:
        before = mappings_of(mixture)
        with monkeypatch.context() as patch:
            patch.setattr(place, name, instead)
            with (
                pytest.raises(CannotStreamError, match=reason),
                CachedExperts(pages_of(mixture), N_USED, 10**9, CALM) as weights,
                LlamaContext(model, CONFIG, weights) as made,
            ):
                self_check.stream(made, weights)
        assert mappings_of(mixture) == before
        with LlamaContext(model, CONFIG) as plain:
            assert written(plain) == expected


@pytest.mark.slow
def test_a_file_that_is_cut_short_is_an_error_and_nothing_wrong_is_kept(
    tmp_path: Path, mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(mixture, path)
    with cached(path, 1) as (made, weights):
        expected = one_pass(made)
        data = path.read_bytes()
        os.truncate(path, len(data) // 3)
        with pytest.raises(LlamaError, match="was cut short"):
            one_pass(made)
        monkeypatch.setattr(WeightFile, "check_length", lambda _: None)  # it is found by reading, too
        with pytest.raises(LlamaError, match="was cut short"):
            one_pass(made)
        path.write_bytes(data)
        assert one_pass(made) == expected
        assert weights._cache.n_bytes <= weights.residency.cache_bytes


@pytest.mark.slow
@pytest.mark.parametrize("error", [LlamaError("a disk that fails"), KeyboardInterrupt()])
def test_a_pass_that_ends_in_the_middle_leaves_nothing_wrong(
    mixture: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(HeldPages, "n_readers", 3)
    monkeypatch.setattr(HeldPages, "request_bytes", PAGE)
    with cached(mixture, 1) as (made, weights):
        expected = one_pass(made)
        read = WeightFile.read
        for n_before in (0, 5, 40, 90):
            n_read = 0

            def failing(file: WeightFile, into: memoryview, offset: int, n_before: int = n_before) -> int:
                nonlocal n_read
                n_read += 1
                if n_read > n_before:
                    raise error
                return read(file, into, offset)

            with monkeypatch.context() as patch:
                patch.setattr(WeightFile, "read", failing)
                with pytest.raises(type(error)):
                    one_pass(made)
            kept = zip(*np.nonzero(weights._cache.kept), strict=True)
            places = pages_of(mixture).matrices()
            assert weights._cache.n_bytes == sum(m.own(j).n_bytes for i, j in kept for m in places[i])
            assert one_pass(made) == expected
