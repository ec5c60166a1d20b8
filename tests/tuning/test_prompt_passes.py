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
from specrun.llama.facts.tiny_model import write_dense
from specrun.llama_settings import ALL_LAYERS, UNDECIDED, LlamaSettings
from specrun.long_run import Run
from specrun.speculation.method import OFF
from specrun.tuning import prompt_passes
from specrun.tuning.prompt_passes import choose, compare, may_gain, pays, sizes_that_fit, trade, trades

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


def test_one_or_two_layers_may_leave_vram_for_larger_passes(tmp_path: Path) -> None:
    wide = write_dense(tmp_path / "wide.gguf", (16, 4, 128), 2048, 5632, 32, 12, ["F16", "Q4_0"])

    def layers(
        free_bytes: int, target: Path = wide, ctx_size: int = 4096, settings: LlamaSettings = UNDECIDED
    ) -> list[tuple[int | None, int]]:
        gpu = Device("CUDA0", "a GPU", "GPU", "CUDA", free_bytes, free_bytes)
        asked = replace(options(target), ctx_size=ctx_size)
        return [(one.gpu_layers, one.prompt_pass) for one in trades(asked, settings, [gpu])]

    found = {n: layers(n) for n in range(400_000_000, 800_000_000, 20_000_000)}
    traded = {n: one for n, one in found.items() if one}
    assert 0 < len(traded) < len(found)
    for (usual, n), (larger, twice) in traded.values():
        assert (n, twice) == (512, 1024)
        assert usual
        assert larger in (usual - 1, usual - 2)
        assert larger, "without a layer in VRAM there is nothing to trade"
    at = next(iter(traded))
    assert layers(at, settings=LlamaSettings(ubatch_size=2048)) == [], "there is no larger size"
    assert layers(at, settings=LlamaSettings(gpu_layers=2)) == [], "layers that are decided stay"
    assert layers(at, ctx_size=2000) == [], "no prompt is so long"
    assert layers(80 * 10**9) == [], "all layers have room"
    assert layers(338_000_000, target=embedded.TARGET) == [], "five small layers would leave"


def test_a_trade_pays_if_a_long_prompt_gains_more_than_a_plain_answer_loses() -> None:
    assert pays((2.0, 60.0), (1.1, 63.0)), "1.8 s of a prompt against 0.8 s of an answer"
    assert not pays((2.0, 60.0), (1.8, 63.0)), "0.4 s against 0.8 s"
    assert not pays((2.0, 60.0), (1.75, 60.0)), "0.5 s of 19.5 s are not clear"


@pytest.mark.parametrize(
    ("after", "seconds", "best", "sizes"),
    [((1.0, 63.0), 60, 1024, {512, 1024}), ((1.9, 63.0), 60, 512, {512, 1024}), ((1.0, 63.0), -1, 512, set())],
)
def test_a_trade_is_measured_in_time(
    after: tuple[float, float], seconds: float, best: int, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = [LlamaSettings(gpu_layers=5), LlamaSettings(gpu_layers=4, ubatch_size=1024)]
    times = dict(zip(candidates, ((2.0, 60.0), after), strict=True))
    monkeypatch.setattr(prompt_passes, "_read_and_written", lambda _options, settings, _text: times[settings])
    notes: list[str] = []
    chosen, ms = trade(options(), candidates, "", Run(note=notes.append).stage(seconds))
    assert (chosen, set(ms)) == (best, sizes)
    assert len(notes) == (not sizes)


@pytest.mark.slow
def test_both_sides_of_a_trade_are_measured_on_a_real_model() -> None:
    candidates = [LlamaSettings(threads=1), LlamaSettings(threads=1, ubatch_size=1024)]
    text = "def read(path):\n    return open(path).read()\n"
    _, ms = trade(replace(options(), ctx_size=2500), candidates, text, Run())
    assert set(ms) == {512, 1024}
    assert all(each > 0 for each in ms.values())


@pytest.mark.slow
def test_a_real_model_is_timed_and_its_settings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_passes, "CLEARLY_AT_ONCE", 1e-6)  # any size is fast enough
    given = LlamaSettings(threads=1, type_v="f16")
    text = "def read(path):\n    return open(path).read()\n"
    chosen, ms = choose(replace(options(), ctx_size=1500), given, SIZES, True, text, Run())
    assert chosen == replace(given, ubatch_size=1024), "2,048 tokens do not fit the context"
    assert sorted(ms) == [512, 1024]
    assert all(each > 0 for each in ms.values())
