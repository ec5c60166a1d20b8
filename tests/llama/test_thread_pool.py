"""Passes with a pool of threads give the same bits as passes without one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from specrun.catalog import embedded
from specrun.llama import LlamaModel, devices, thread_pool
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext, Logits
from specrun.llama_settings import LlamaSettings

N_THREADS = 3
TOKENS = list(range(40, 72))


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded.DRAFT) as model:
        yield model


def context(model: LlamaModel) -> LlamaContext:
    return LlamaContext(model, ContextConfig(64, 1, 32, 32, LlamaSettings(threads=N_THREADS)))


def all_logits(context: LlamaContext) -> Logits:
    """float32[40, n_vocab]: a large pass, then small ones with all threads and with one."""
    rows = [context.decode(committed_tokens(TOKENS, 0, 1, len(TOKENS))).copy()]
    for n in range(4):
        rows.append(context.decode(committed_tokens([n], 32 + n, 1, 1)).copy())
    context.set_threads(1)
    for n in range(4, 8):
        rows.append(context.decode(committed_tokens([n], 32 + n, 1, 1)).copy())
    return np.concatenate(rows)


def test_the_bits_are_the_same(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    class Counted(thread_pool.ThreadPool):
        def __init__(self, handle: object, n_threads: int) -> None:
            given.append(n_threads)
            super().__init__(handle, n_threads)

    monkeypatch.setattr(thread_pool, "ThreadPool", Counted)
    monkeypatch.setattr(thread_pool, "is_needed", lambda: False)
    with context(model) as plain:
        expected = all_logits(plain)
    assert given == []
    monkeypatch.setattr(thread_pool, "is_needed", lambda: True)
    with context(model) as pooled, context(model) as other:
        np.testing.assert_array_equal(all_logits(pooled), expected)
        np.testing.assert_array_equal(all_logits(other), expected)
        pooled.close()
        pooled.close()
    assert given == [N_THREADS, N_THREADS]


@pytest.mark.parametrize(("info", "needed"), [("AVX2 = 1 | OPENMP = 1 | ", False), ("AVX2 = 1 | ", True)])
def test_openmp_keeps_its_threads_by_itself(info: str, needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "system_info", lambda: f"CUDA : X = 1 | CPU : {info}")
    thread_pool.is_needed.cache_clear()
    assert thread_pool.is_needed() == needed
    thread_pool.is_needed.cache_clear()


def test_the_threads_end_with_the_context(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this build has OpenMP, a pool has none from the beginning."""
    n_kept = N_THREADS - 1 if thread_pool.is_needed() else 0
    monkeypatch.setattr(thread_pool, "is_needed", lambda: True)
    n_before = psutil.Process().num_threads()
    with context(model):
        assert psutil.Process().num_threads() == n_before + n_kept
    assert psutil.Process().num_threads() == n_before
