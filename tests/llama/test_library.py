"""What llama.cpp's error lines mean, and what becomes of a process that it ends."""

from __future__ import annotations

import sys

import pytest

from specrun.errors import CrashError, LlamaError, OutOfMemoryError
from specrun.llama.library import memory_failure
from specrun.processes import child_process
from tests.llama.giving_up import abort_as_cuda, throw


@pytest.mark.parametrize(
    ("lines", "lacks"),
    [
        (["alloc_buffer: allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory",
          "alloc_tensor_range: failed to allocate CUDA0 buffer of size 943718400"], True),
        (["llama_model_load: error loading model: unable to allocate Vulkan0 buffer"], True),
        (["llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache"], True),
        (["llama_init_from_model: failed to initialize the context: std::bad_alloc"], True),
        (["  cublasCreate_v2(&handle)", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"], True),
        (["vk::Device::allocateMemory: ErrorOutOfDeviceMemory"], True),
        (["error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"], True),
        (["llama_model_load: error loading model: missing tensor 'output_norm.weight'"], False),
    ],
)  # fmt: skip
def test_lack_of_memory_is_told_from_other_failures(lines: list[str], lacks: bool) -> None:
    assert (memory_failure(lines) is not None) == lacks


def serve(request: str) -> None:
    """In the child: what the test asked for."""
    works = {"cuda": lambda: abort_as_cuda("out of memory"), "lost": lambda: abort_as_cuda("device lost")}
    child_process.reply(request, lambda given: works.get(given["ask"], lambda: throw(given["ask"]))())


def ended(asked: str, error: type[LlamaError]) -> str:
    with pytest.raises(error) as caught:
        child_process.answer(__name__, {"ask": asked}, "the child", lambda: None, debug=False)
    assert type(caught.value) is error
    return str(caught.value)


@pytest.mark.slow
def test_a_pass_that_runs_out_of_memory_ends_with_the_drivers_words() -> None:
    said = ended("cuda", OutOfMemoryError)
    assert (
        said
        == "llama.cpp ran out of memory (CUDA error: out of memory); try fewer --gpu-layers or a smaller --ctx-size"
    )
    assert ended("lost", CrashError) == "llama.cpp gave up (ggml-cuda.cu:109: CUDA error)"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="GCC's C++ library")
def test_what_c_plus_plus_throws_is_told() -> None:
    what = "vk::Device::allocateMemory: ErrorOutOfDeviceMemory"
    assert f"ran out of memory ({what});" in ended(what, OutOfMemoryError)
    assert ended("vk::Queue::submit: ErrorDeviceLost", CrashError).endswith(
        "gave up (vk::Queue::submit: ErrorDeviceLost)"
    )
