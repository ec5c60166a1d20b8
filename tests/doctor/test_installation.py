"""The build of llama.cpp against the machine: instructions, backends, and a layer on each device."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from specrun.doctor import examine, installation
from specrun.errors import LlamaError
from specrun.hardware.cpu import OtherLoad, cpu_features, read_flags
from specrun.llama import library
from specrun.processes import child_process
from tests.hardware.test_machine import CPU, GPU, GiB

X86_FLAGS = frozenset({"fpu", "pni", "ssse3", "avx", "avx2", "fma", "f16c", "bmi2", "avx512f"})


@pytest.mark.slow
def test_this_build_is_what_llama_cpp_says_and_its_layers_run_on_the_cpu() -> None:
    build = installation.read_build()
    assert build.identity == library.identity()
    assert list(build.backends) == library.backends()
    assert installation.instructions(cpu_features(build.system_info), read_flags()).status != "fail"
    cpu = next(device for device in build.devices if device.kind == "CPU")
    (finding,) = installation.devices([cpu], installation.run_layer)
    assert (finding.check, finding.status) == (f"device {cpu.name}", "ok"), finding


@pytest.mark.slow
def test_a_device_that_is_not_there_is_no_device_that_works() -> None:
    with pytest.raises(LlamaError):
        installation.run_layer(99)


def test_instructions_that_the_processor_lacks_are_a_failure() -> None:
    finding = installation.instructions(("SSE3", "AVX2", "AVX512", "AMX_INT8", "REPACK"), X86_FLAGS)
    assert finding.status == "fail"
    assert "AMX_INT8" in finding.detail
    assert "AVX512" not in finding.detail
    assert "pip install" in finding.fix


def test_instructions_that_the_build_leaves_unused_are_named() -> None:
    finding = installation.instructions(("SSE3", "SSSE3", "AVX", "BMI2", "AVX512"), X86_FLAGS)
    assert finding.status == "warn"
    assert "compiled without AVX2, F16C, FMA," in finding.detail
    assert "GGML_NATIVE=on" in finding.fix
    used = ("SSE3", "SSSE3", "AVX", "AVX2", "F16C", "FMA", "BMI2", "AVX512")
    assert installation.instructions(used, X86_FLAGS).status == "ok"


def test_every_fix_keeps_the_backends_of_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = ("CUDA", "RPC", "CPU")
    kept = "-DGGML_CUDA=on -DGGML_RPC=on"
    finding = installation.instructions(("SSE3",), X86_FLAGS, backends)
    assert finding.fix.startswith(f'CMAKE_ARGS="{kept} -DGGML_NATIVE=on" pip install')

    def fails(_: int | None) -> float:
        raise LlamaError("it crashed")

    (device,) = installation.devices([CPU], fails, backends)
    assert device.fix.startswith(f'CMAKE_ARGS="{kept}" pip install')

    def crashes(*_: object) -> None:
        raise LlamaError("it crashed")

    monkeypatch.setattr(installation, "_answer", crashes)
    (fact,) = installation.check_facts(backends)
    assert fact.fix.startswith(f'CMAKE_ARGS="{kept}" pip install llama-cpp-python==')


def test_instructions_of_arm_and_of_systems_that_do_not_list_them() -> None:
    arm = frozenset({"fp", "asimd", "asimdhp", "asimddp", "sve"})
    assert installation.instructions(("NEON", "FP16_VA", "DOTPROD", "SVE", "SVE_CNT=16"), arm).status == "ok"
    assert "MATMUL_INT8" in installation.instructions(("NEON", "FP16_VA", "DOTPROD", "SVE", "MATMUL_INT8"), arm).detail
    assert installation.instructions(("NEON", "DOTPROD"), frozenset()).status == "ok"


@pytest.mark.parametrize(
    ("names", "n_gpus", "driver", "status", "part"),
    [
        (("CPU",), 0, None, "ok", "CPU"),
        (("CUDA", "CPU"), 1, "nvidia 550.54.14", "ok", "CUDA, CPU"),
        (("CUDA", "CPU"), 0, "nvidia 550.54.14", "warn", "nvidia-smi"),
        (("CPU",), 0, "nvidia 550.54.14", "warn", "CMAKE_ARGS=-DGGML_CUDA=on pip"),
        (("BLAS", "CPU"), 0, "amdgpu 6.7.0", "warn", 'CMAKE_ARGS="-DGGML_BLAS=on -DGGML_VULKAN=on" pip'),
    ],
)
def test_a_gpu_that_is_not_used_is_found(
    names: tuple[str, ...], n_gpus: int, driver: str | None, status: str, part: str
) -> None:
    finding = installation.backends(names, n_gpus, driver)
    assert finding.status == status
    assert part in finding.detail + finding.fix


def test_each_device_is_tried_by_its_place_among_those_that_get_layers() -> None:
    tried: list[int | None] = []

    def run_layer(gpu: int | None) -> float:
        tried.append(gpu)
        return 1.5

    second = replace(GPU, name="CUDA1", id="0000:02:00.0", free_bytes=GiB)
    blas = replace(CPU, name="BLAS", kind="ACCEL")
    first, other, assistant, cpu = installation.devices([GPU, second, blas, CPU], run_layer)
    assert tried == [0, 1, None]
    assert (first.status, cpu.status) == ("ok", "ok")
    assert "10.74 GB of 12.88 GB free; a layer runs there (1.5 ms)" in first.detail
    assert (other.status, other.fix) == ("warn", "end what `nvidia-smi` lists")
    assert "no layers there" in assistant.detail


@pytest.mark.slow
def test_a_crash_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that ends the process, here a real one that ends itself."""
    monkeypatch.setattr(installation, "__name__", __name__)
    finding, _ = installation.devices([GPU, CPU], installation.run_layer)
    assert (finding.check, finding.status) == ("device CUDA0", "fail")
    assert f"ended by signal {signal.SIGILL.value} (Illegal instruction)" in finding.detail
    assert "--gpu-layers 0" in finding.fix


def serve(_request: str) -> None:
    """What the process of the test above does."""
    os.kill(os.getpid(), signal.SIGILL)


def test_a_library_that_cannot_be_loaded_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "__name__", "no_such_module")
    with pytest.raises(LlamaError, match="No module named 'no_such_module'"):
        installation.read_build()
    monkeypatch.setattr(examine, "watched", lambda: OtherLoad(0.0, 1))
    finding = next(examine.examine(lambda _: None))
    assert (finding.check, finding.status, "pip install" in finding.fix) == ("llama.cpp", "fail", True)


def test_a_device_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_SECONDS", 0.0)
    with pytest.raises(LlamaError, match="no answer"):
        installation.run_layer(None)


def test_what_a_process_said_before_a_signal_is_kept() -> None:
    said = child_process._failure("it", -signal.SIGABRT, ["one", "specrun: what(): no device; ask"])
    assert said == f"it ended by signal {signal.SIGABRT.value} (Aborted): what(): no device"


def test_an_nvidia_card_without_its_driver() -> None:
    finding = installation.backends(("CPU",), 0, None, has_nvidia=True)
    assert finding.status == "warn"
    assert "whose driver is not loaded" in finding.detail
    assert "nvidia-smi" in finding.fix
    assert installation.backends(("CUDA", "CPU"), 1, "nvidia 550.54.14", has_nvidia=True).status == "ok"
