"""What llama.cpp's error lines mean."""

from __future__ import annotations

import pytest

from specrun.llama.library import lacks_memory


@pytest.mark.parametrize(
    ("lines", "lacks"),
    [
        (["alloc_buffer: allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory",
          "alloc_tensor_range: failed to allocate CUDA0 buffer of size 943718400"], True),
        (["llama_model_load: error loading model: unable to allocate Vulkan0 buffer"], True),
        (["llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache"], True),
        (["llama_init_from_model: failed to initialize the context: std::bad_alloc"], True),
        (["llama_model_load: error loading model: missing tensor 'output_norm.weight'"], False),
    ],
)  # fmt: skip
def test_lack_of_memory_is_told_from_other_failures(lines: list[str], lacks: bool) -> None:
    assert lacks_memory(lines) == lacks
