"""Which sizes of passes over a prompt are compared, and which is taken."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import llama_cpp
import pytest

from specrun import clock
from specrun.catalog import embedded
from specrun.hardware.machine import Device
from specrun.hardware.memory import Memory
from specrun.llama.facts.tiny_model import write_dense
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.loading.placing import Here
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.speculation.method import OFF
from specrun.tuning.prompt_passes import ReadPrompt, choose, may_gain, pays, sizes_that_fit

SIZES = [512, 1024, 2048]
GIVEN = LlamaSettings(threads=1, type_v="f16")


@dataclass
class Simulated:
    """Passes of a real model that take what a function of their tokens says."""

    of_size: Callable[[int], float]
    made: set[int] = field(default_factory=set)
    seconds: float = 0.0
    _decode: Callable[[ctypes.c_void_p, llama_cpp.llama_batch], int] = llama_cpp.llama_decode

    def decode(self, context: ctypes.c_void_p, batch: llama_cpp.llama_batch) -> int:
        self.made.add(batch.n_tokens)
        self.seconds += self.of_size(batch.n_tokens) / 1e3
        return self._decode(context, batch)


def options(target: Path = embedded.TARGET) -> RunOptions:
    return RunOptions(target, None, (OFF.plan(),))


def chosen(
    target: Path,
    of_size: Callable[[int], float],
    monkeypatch: pytest.MonkeyPatch,
    run: Run | None = None,
    *,
    is_bounded: bool = True,
) -> tuple[int, dict[int, float], set[int]]:
    """The size that is taken, the times that were kept, and the sizes of all passes over many tokens."""
    passes = Simulated(of_size)
    monkeypatch.setattr(clock, "now", lambda: passes.seconds)
    monkeypatch.setattr(llama_cpp, "llama_decode", passes.decode)
    asked = replace(options(target), ctx_size=2200)
    settings, ms = choose(asked, GIVEN, SIZES, is_bounded, "def read(path):\n", run or Run())
    assert replace(settings, ubatch_size=None) == GIVEN, "other settings stay as they are"
    return settings.prompt_pass, ms, {n for n in passes.made if n > 32}


def test_where_every_pass_waits_for_the_weights_the_largest_is_taken(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, ms, _ = chosen(random_model, lambda n: 5000 + 2 * n, monkeypatch)
    assert best == 2048
    assert sorted(ms) == SIZES
    assert ms[512] == pytest.approx((4 * 5000 + 2 * 2048) / 2048)
    assert ms[2048] == pytest.approx((5000 + 2 * 2048) / 2048)


def test_the_next_size_is_not_timed_where_the_one_before_gained_little(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, ms, _ = chosen(random_model, lambda n: 60 + 2 * n, monkeypatch, is_bounded=False)
    assert (best, sorted(ms)) == (512, [512, 1024]), "1,024 tokens: 2 % faster than twice 512"


def test_nothing_large_is_timed_where_it_can_gain_nothing(random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(random_model, lambda n: 20 + 3.5 * n, monkeypatch) == (512, {}, set())
    assert not may_gain(plain_ms=23.5, prompt_ms=3.5)
    assert may_gain(plain_ms=5000, prompt_ms=12)


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "sizes"), [(-1, set()), (8, set()), (26, {512, 1024}), (1000, set(SIZES))])
def test_passes_that_would_not_end_in_time_are_left_out_with_a_note(
    random_model: Path, seconds: float, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    run = replace(Run(note=notes.append), deadline=seconds)
    _, ms, _ = chosen(random_model, lambda n: 1000 + 2 * n, monkeypatch, run)
    assert set(ms) == sizes
    assert any("--thorough" in note for note in notes) == (sizes != set(SIZES))


def fitting(free_bytes: int, target: Path = embedded.TARGET, settings: LlamaSettings | None = None) -> list[int]:
    gpu = Device("CUDA0", "a GPU", "GPU", "CUDA", free_bytes, free_bytes)
    asked = replace(options(target), ctx_size=4096)
    return sizes_that_fit(asked, settings or LlamaSettings(), replace(Here.of(asked), gpus=(gpu,)))


@pytest.mark.slow
def test_one_or_two_layers_may_leave_vram_for_larger_buffers(tmp_path: Path) -> None:
    wide = write_dense(tmp_path / "wide.gguf", (16, 4, 128), 2048, 5632, 32, 12, ["F16", "Q4_0"])
    assert fitting(80 * 10**9, wide) == SIZES
    found = [fitting(n, wide) for n in range(400_000_000, 800_000_000, 20_000_000)]
    assert {len(sizes) for sizes in found} > {2}, "2,048 tokens often take more than two layers' place"
    assert fitting(500_000_000, wide, LlamaSettings(gpu_layers=2)) == SIZES, "layers that the user placed stay"
    small = {len(fitting(n)) for n in range(330_000_000, 460_000_000, 4_000_000)}
    assert 1 in small, "five small layers would leave"


def test_buffers_take_little_of_the_file_cache_of_streamed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    file_bytes = embedded.TARGET.stat().st_size
    monkeypatch.setattr(Memory, "read", lambda: Memory(10**10, file_bytes))
    asked = replace(options(), ctx_size=4096)
    assert sizes_that_fit(asked, LlamaSettings(), Here.of(asked)) == [512]
    assert fitting(80 * 10**9, settings=LlamaSettings(gpu_layers=ALL_LAYERS)) == SIZES


def test_a_short_context_has_no_room_for_larger_passes() -> None:
    asked = replace(options(), ctx_size=1024)
    assert sizes_that_fit(asked, LlamaSettings(), Here.of(asked)) == [512]


def test_a_size_pays_if_a_long_prompt_gains_more_than_a_plain_answer_loses() -> None:
    def read(token_ms: float, plain_ms: float) -> ReadPrompt:
        return ReadPrompt(1024, 2048, token_ms, plain_ms)

    assert pays(read(1.1, 63.0), read(2.0, 60.0)), "1.8 s of a prompt against 0.8 s of an answer"
    assert not pays(read(1.8, 63.0), read(2.0, 60.0)), "0.4 s against 0.8 s"
    assert not pays(read(1.95, 60.0), read(2.0, 60.0)), "0.1 s of 4.1 s are not clear"
