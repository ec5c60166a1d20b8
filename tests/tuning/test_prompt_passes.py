"""Which sizes of passes over a prompt are compared, and which is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.engine import placing
from specrun.engine.run_options import RunOptions
from specrun.hardware.device import Device
from specrun.hardware.memory import Memory
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.long_run import Run
from specrun.speculation.method import OFF
from specrun.tuning import prompt_passes
from specrun.tuning.prompt_passes import choose, compare, may_gain, sizes_that_fit

SIZES = [512, 1024, 2048]


@dataclass
class Clock:
    """Passes that take what a function of their tokens says, and 1 ms more for each 64 tokens before them."""

    of_size: Callable[[int], float]
    asked: list[tuple[int, int]] = field(default_factory=list)

    def ms(self, start: int, n: int) -> float:
        self.asked.append((start, n))
        return self.of_size(n) + start / 64

    @property
    def sizes(self) -> set[int]:
        return {n for _, n in self.asked if n > 32}


def test_where_every_pass_waits_for_the_weights_the_largest_is_taken() -> None:
    clock = Clock(lambda n: 5000 + 2 * n)
    best, ms = compare(clock.ms, SIZES, True, Run())
    assert best == 2048
    assert sorted(ms) == SIZES
    assert ms[512] == pytest.approx((2 * (5000 + 2 * 512) + 512 / 64) / 1024)
    assert ms[2048] == pytest.approx((5000 + 2 * 2048) / 2048)


def test_the_next_size_is_not_timed_where_the_one_before_gained_little() -> None:
    clock = Clock(lambda n: 60 + 2 * n)  # 1,024 tokens: 2 % faster than twice 512
    assert compare(clock.ms, SIZES, False, Run())[0] == 512
    assert clock.sizes == {512, 1024}
    assert compare(clock.ms, SIZES[:1], False, Run()) == (512, {}), "a short context"


def test_nothing_large_is_timed_where_it_can_gain_nothing() -> None:
    in_ram = Clock(lambda n: 20 + 3.5 * n)
    assert compare(in_ram.ms, SIZES, True, Run()) == (512, {})
    assert not in_ram.sizes
    assert not may_gain(plain_ms=23.5, prompt_ms=3.5)
    assert may_gain(plain_ms=5000, prompt_ms=12)


@pytest.mark.parametrize(("seconds", "sizes"), [(-1, set()), (8, set()), (13, {512, 1024}), (1000, set(SIZES))])
def test_passes_that_would_not_end_in_time_are_left_out_with_a_note(seconds: float, sizes: set[int]) -> None:
    notes: list[str] = []
    clock = Clock(lambda n: 1000 + 4 * n)
    compare(clock.ms, SIZES, True, Run(note=notes.append).stage(seconds))
    assert clock.sizes == sizes
    assert any("--thorough" in note for note in notes) == (sizes != set(SIZES))


def options(target: Path = embedded.TARGET) -> RunOptions:
    return RunOptions(target, None, (OFF.plan(),))


@pytest.mark.slow
def test_no_layer_leaves_vram_for_larger_buffers() -> None:
    def fitting(free_bytes: int, settings: LlamaSettings) -> list[int]:
        gpu = Device("CUDA0", "a GPU", "GPU", "CUDA", free_bytes, free_bytes)
        return sizes_that_fit(options(), settings, [gpu])

    assert fitting(80 * 10**9, LlamaSettings()) == SIZES
    counts = {len(fitting(n, LlamaSettings())) for n in range(330_000_000, 460_000_000, 1_000_000)}
    assert len(counts) > 1, "somewhere the buffers of a larger pass take a layer's place"
    assert fitting(380_000_000, LlamaSettings(gpu_layers=ALL_LAYERS)) == SIZES, "layers that the user placed stay"


def test_buffers_take_little_of_the_file_cache_of_streamed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    file_bytes = embedded.TARGET.stat().st_size
    monkeypatch.setattr(placing.Memory, "read", lambda: Memory(10**10, file_bytes))
    assert sizes_that_fit(options(), LlamaSettings(), []) == [512]


@pytest.mark.slow
def test_a_real_model_is_timed_and_its_settings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_passes, "CLEARLY_AT_ONCE", 1e-6)  # any size is fast enough
    given = LlamaSettings(threads=1, type_v="f16")
    text = "def read(path):\n    return open(path).read()\n"
    chosen, ms = choose(replace(options(), ctx_size=1500), given, SIZES, True, text, Run())
    assert chosen == replace(given, ubatch_size=1024), "2,048 tokens do not fit the context"
    assert sorted(ms) == [512, 1024]
    assert all(each > 0 for each in ms.values())
