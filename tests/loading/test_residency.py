"""Runs whose target does not fit into RAM: the same text with every plan, what is reported, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import expert_pages, n_bytes
from specrun.errors import LlamaError
from specrun.hardware import memory
from specrun.hardware.fit import Residency
from specrun.hardware.memory import Memory
from specrun.llama import LlamaModel
from specrun.llama.streaming.address_space import PAGE
from specrun.llama.streaming.cached_experts import CachedExperts
from specrun.llama.streaming.weight_file import WeightFile
from specrun.llama_settings import LlamaSettings
from specrun.loading import loading, residency
from specrun.loading.model import Model
from specrun.loading.placing import plan_load
from specrun.loading.residency import room_in_ram
from specrun.loading.run_options import RunOptions, identity_of
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.conftest import SpecrunHere
from tests.engines import Written, code_prompts, engine, first_difference, write
from tests.models import random_llama, random_qwen3_moe, split
from tests.streams import planned

ONE_THREAD = LlamaSettings(threads=1)

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="weights are streamed on Linux only")


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Let about `n_resident` layers of a model fit into RAM beside the slots."""

    def limit(target: Path, n_resident: int) -> None:
        plan = planned(target, n_resident).plan
        room = plan.resident_bytes + plan.n_slots * plan.slot_bytes
        monkeypatch.setattr(residency, "room_in_ram", lambda *_: room)

    return limit


@pytest.fixture
def model(made: Path) -> Path:
    """A target with more layers than the embedded one, and its tokenizer."""
    path = made / "nine-layers.gguf"
    return path if path.exists() else random_llama(path, n_layer=9)


def written(target: Path, draft: Path, plan: Plan, sampling: SamplingParameters) -> list[Written]:
    with engine(target, draft, plan) as e:
        prompts = code_prompts(e, 2, 40)
        return [write(e, prompt, replace(sampling, seed=i), plan, 48) for i, prompt in enumerate(prompts)]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same_bit_for_bit(
    model: Path, random_model: Path, temperature: float, limited: Callable[[Path, int], None]
) -> None:
    sampling = SamplingParameters(temperature=temperature)
    plain = written(model, random_model, OFF.plan(), sampling)
    limited(model, 3)
    for plan in (OFF.plan(), CHAIN.plan(depth=4), SPECEXEC.plan(24, 8)):
        for result, reference in zip(written(model, random_model, plan, sampling), plain, strict=True):
            assert first_difference(result, reference) is None, str(plan)
            assert result.statistics.bytes_read > 0
            assert reference.statistics.bytes_read == 0


@pytest.mark.slow
def test_the_embedded_pair_is_the_same_bit_for_bit(limited: Callable[[Path, int], None], tmp_path: Path) -> None:
    # A copy, because no file is streamed that another model in this process uses, such as one that tests share.
    target = Path(shutil.copy(embedded.TARGET, tmp_path))
    sampling = SamplingParameters(temperature=0.8)
    plain = written(target, embedded.DRAFT, OFF.plan(), sampling)
    limited(target, 0)
    for plan in (OFF.plan(), CHAIN.plan(depth=4), SPECEXEC.plan(24, 8)):
        results = written(target, embedded.DRAFT, plan, sampling)
        assert [first_difference(one, other) for one, other in zip(results, plain, strict=True)] == [None, None]
        assert all(result.statistics.bytes_read for result in results)


def loaded(target: Path, settings: LlamaSettings = ONE_THREAD, choice: str = "auto") -> tuple[Residency, list[str]]:
    """How the weights are held, and what the user is told."""
    options = RunOptions(target, None, (OFF.plan(),), settings=settings, residency=choice)  # type: ignore[arg-type]
    with Model(options) as model:
        assert model.generate("def", max_tokens=2).token_ids
        return model.residency, model.notices


@pytest.mark.slow
def test_what_is_streamed_is_known(model: Path, limited: Callable[[Path, int], None]) -> None:
    limited(model, 2)
    held, notices = loaded(model)
    plan = planned(model, 2).plan
    assert (held.mode, held.resident_bytes, held.streamed_bytes) == ("ring", plan.resident_bytes, plan.streamed_bytes)
    assert notices == []


@pytest.mark.slow
def test_a_split_model_is_streamed(tmp_path: Path, model: Path, limited: Callable[[Path, int], None]) -> None:
    path = split(tmp_path / "m.gguf", model, 3)
    limited(path, 0)
    assert loaded(path)[0].mode == "ring"


def test_off_leaves_everything_to_llama_cpp(model: Path, limited: Callable[[Path, int], None]) -> None:
    limited(model, 2)
    assert loaded(model, choice="off") == (Residency(), [])


def test_nothing_is_streamed_where_everything_fits(model: Path) -> None:
    assert loaded(model) == (Residency(), [])


def refused(target: Path, settings: LlamaSettings = ONE_THREAD) -> str:
    """The one notice of a run that falls back."""
    held, notices = loaded(target, settings)
    assert held == Residency()
    (notice,) = notices
    assert notice.startswith("weights that do not fit are left to the system's page cache, because ")
    assert "\n" not in notice
    return notice


@pytest.mark.slow
def test_what_cannot_be_streamed_is_said_once(
    tmp_path: Path, model: Path, limited: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(model, 2)
    assert "--load-mode none" in refused(model, replace(ONE_THREAD, load_mode="none"))
    monkeypatch.setattr(residency, "room_in_ram", lambda *_: 1000)
    assert "no memory for two layers" in refused(model)
    assert "beside experts does not fit" in refused(random_qwen3_moe(tmp_path / "moe.gguf", n_layer=5))
    monkeypatch.setattr("specrun.llama.streaming.address_space.sys.platform", "darwin")
    assert "on Linux only" in refused(model)


@pytest.mark.slow
@pytest.mark.reordered
def test_re_ordered_weights_are_not_streamed(model: Path, limited: Callable[[Path, int], None]) -> None:
    limited(model, 2)
    assert "--repack" in refused(model, replace(ONE_THREAD, repack=True))


@pytest.mark.slow
def test_a_mixture_writes_the_same_text_where_experts_are_read_as_they_are_chosen(
    tmp_path: Path, random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=5)
    sampling = SamplingParameters(temperature=0.8)
    plans = (OFF.plan(), SPECEXEC.plan(24, 8))
    # Passes of several tokens give other last bits in a mixture of this type, whoever reads it.
    expected = [written(mixture, random_model, plan, sampling) for plan in plans]
    monkeypatch.setattr(residency, "room_in_ram", lambda *_: 10**8)
    for plan, references in zip(plans, expected, strict=True):
        for result, reference in zip(written(mixture, random_model, plan, sampling), references, strict=True):
            assert first_difference(result, reference) is None, str(plan)
            assert result.statistics.wait_seconds > 0
    held, notices = loaded(mixture)
    assert (held.mode, notices) == ("experts", [])
    assert " of experts, read when they are chosen, up to " in str(held)


@pytest.fixture
def few_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mixture of which the experts of one layer fit."""
    mixture = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=5)
    pages = expert_pages(GgufFile.read(mixture), PAGE)
    room = n_bytes(pages.dense) + n_bytes(pages.experts) * 3 // 5  # pages that experts share are counted as well
    monkeypatch.setattr(residency, "room_in_ram", lambda *_: room)
    return mixture


@pytest.mark.slow
def test_experts_that_cannot_be_cached_are_left_to_the_page_cache_with_one_line(
    few_experts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loaded(few_experts)[0].cache_bytes > 0

    def refusing(*_: object) -> None:
        raise residency.CannotStreamError("of a test")

    monkeypatch.setattr(residency.self_check, "stream", refusing)
    held, notices = loaded(few_experts)
    assert held.mode == "off"
    assert notices == ["weights that do not fit are left to the system's page cache, because of a test"]
    monkeypatch.undo()
    pages = expert_pages(GgufFile.read(few_experts), PAGE)
    monkeypatch.setattr(residency, "room_in_ram", lambda *_: n_bytes(pages.dense) + PAGE)
    held, (notice,) = loaded(few_experts)
    assert held.mode == "off"
    assert "the experts of a layer do not fit into memory" in notice


@pytest.mark.slow
def test_reports_of_a_mixture(few_experts: Path, here: SpecrunHere) -> None:
    common = ("generate", "-m", few_experts, "--speculate", "off", "-n", "8", "--raw", "--load-mode", "mmap", "def")
    answer = json.loads(here(*common, "--json").stdout)
    assert 0 < answer["expert_hit_rate"] < 1
    assert answer["bytes_read_per_pass"] > 0
    off = json.loads(here(*common, "--json", "--residency", "off").stdout)
    assert (off["expert_hit_rate"], off["token_ids"]) == (None, answer["token_ids"])
    stats = here(*common, "--stats").stderr
    assert " of them kept" in stats
    assert "% of its experts were in memory" in stats


@pytest.mark.slow
def test_a_mixture_that_is_cut_short_ends_the_command_with_one_line(
    few_experts: Path, here: SpecrunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_pass, n_passes = CachedExperts.begin_pass, 0

    def cutting(weights: CachedExperts) -> None:
        nonlocal n_passes
        n_passes += 1
        if n_passes == 10:
            os.truncate(few_experts, few_experts.stat().st_size // 3)
        begin_pass(weights)

    monkeypatch.setattr(CachedExperts, "begin_pass", cutting)
    result = here("generate", "-m", few_experts, "--speculate", "off", "--raw", "--load-mode", "mmap", "--json", "def")
    result.assert_fails(LlamaError.exit_code, "was cut short")


def test_where_layers_are_streamed_beside_a_gpu_nothing_copies_weights_there(
    model: Path, limited: Callable[[Path, int], None]
) -> None:
    limited(model, 0)
    options = RunOptions(model, None, (OFF.plan(),))
    for n_vram in (0, 3):
        settings = LlamaSettings(gpu_layers=n_vram)
        streaming = residency.plan_streaming(plan_load(options), settings)
        assert streaming.reader
        expected = replace(settings, op_offload=False, load_mode="mmap") if n_vram else settings
        assert streaming.loadable(settings, LlamaSettings()) == (expected, LlamaSettings(load_mode="none"))
    assert residency.Streaming().loadable(settings, settings) == (settings, settings)


def test_the_room_is_known_only_where_weights_are_streamed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions(model, None, (OFF.plan(),), ctx_size=64)
    assert room_in_ram(plan_load(options).placement) is None
    monkeypatch.setattr(Memory, "read", lambda: Memory(10**9, 200_000_000))
    room = room_in_ram(plan_load(options).placement)
    assert room is not None
    assert 50_000_000 < room < 136_000_000


def test_memory_is_looked_at_before_the_weights_take_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Re-ordered weights are no longer free memory, and would count twice."""
    order: list[str] = []

    def planning(*_: object) -> None:
        order.append("planned")

    class Loading(LlamaModel):
        def __init__(self, path: Path, *rest: Any, **named: Any) -> None:
            order.append("loaded")
            super().__init__(path, *rest, **named)

    monkeypatch.setattr(residency, "room_in_ram", planning)
    monkeypatch.setattr(loading, "LlamaModel", Loading)
    loaded(model, replace(ONE_THREAD, repack=True))
    assert order == ["planned", "loaded"]


@pytest.mark.slow
def test_a_failed_check_gives_everything_back(
    model: Path, limited: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(model, 2)

    def failing(*_: object) -> None:
        raise residency.CannotStreamError("of a test")

    monkeypatch.setattr(residency.self_check, "stream", failing)
    assert refused(model).endswith("because of a test")


@pytest.mark.slow
def test_a_file_that_is_cut_short_ends_the_text_with_an_error(
    tmp_path: Path, model: Path, limited: Callable[[Path, int], None]
) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(model, path)
    limited(path, 2)
    with ExitStack() as stack:
        loaded = stack.enter_context(Model(RunOptions(path, None, (OFF.plan(),), settings=ONE_THREAD)))
        pieces = loaded.stream("def", max_tokens=50)
        next(pieces)
        os.truncate(path, path.stat().st_size // 3)
        with pytest.raises(LlamaError, match="cut short"):
            list(pieces)


@pytest.mark.slow
def test_memory_that_runs_short_is_said_once_and_the_text_is_the_same(
    model: Path, limited: Callable[[Path, int], None], here: SpecrunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = "".join(f'{{"prompt": "def {name}"}}\n' for name in ("a", "b", "c"))
    command = ("generate", "-m", model, "--draft", "none", "--speculate", "off", "-n", "8", "--raw", "--jsonl")

    def texts(stdout: str) -> list[str]:
        return [json.loads(line)["text"] for line in stdout.splitlines()]

    expected = texts(here(*command, stdin=prompts).stdout)
    limited(model, 3)
    n_looks = 0

    def available() -> Memory:
        nonlocal n_looks
        n_looks += 1
        return Memory(10**10, 10**9 if n_looks < 6 else 10**9 // 20)

    monkeypatch.setattr(Memory, "read", available)
    monkeypatch.setattr(memory, "_INTERVAL", 0.0)
    result = here(*command, stdin=prompts)
    assert texts(result.stdout) == expected
    assert result.stderr.count("memory ran short, so ") == 1


def test_a_profile_depends_on_the_choice(model: Path) -> None:
    options = RunOptions(model, None, (OFF.plan(),))
    off = identity_of(replace(options, residency="off"))
    assert identity_of(options) != off
    assert off["settings"].pop("residency") == "off"
    assert identity_of(options) == off


@pytest.mark.slow
def test_reports(model: Path, limited: Callable[[Path, int], None], here: SpecrunHere) -> None:
    limited(model, 2)
    common = ("generate", "-m", model, "--draft", "none", "--speculate", "off", "-n", "8", "--raw", "def")
    answer = json.loads(here(*common, "--json").stdout)
    plan = planned(model, 2).plan
    assert answer["bytes_read_per_pass"] == pytest.approx(plan.streamed_bytes, rel=0.5)
    assert answer["wait_seconds"] >= 0
    off = json.loads(here(*common, "--json", "--residency", "off").stdout)
    assert (off["bytes_read_per_pass"], off["wait_seconds"]) == (0, 0)
    assert off["token_ids"] == answer["token_ids"]
    stats = here(*common, "--stats").stderr
    assert "streamed through 2 slots" in stats
    assert "a pass, which waited" in stats


@pytest.mark.slow
def test_a_disk_that_fails_ends_the_command_with_one_line(
    model: Path, limited: Callable[[Path, int], None], here: SpecrunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(model, 2)
    read, n_read = WeightFile.read, 0

    def failing(file: WeightFile, into: memoryview, offset: int) -> int:
        nonlocal n_read
        n_read += 1
        if n_read > 60:  # some passes after loading
            raise LlamaError(f"{file.path} cannot be read any more: Input/output error")
        return read(file, into, offset)

    monkeypatch.setattr(WeightFile, "read", failing)
    result = here("generate", "-m", model, "--speculate", "off", "-n", "50", "--raw", "--json", "def")
    result.assert_fails(LlamaError.exit_code, "cannot be read any more")
