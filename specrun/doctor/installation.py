"""Versions, backends, and the instructions of llama.cpp's build against the processor's."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable

from specrun.doctor.finding import Finding
from specrun.doctor.probe import Build

REBUILD = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
_BACKENDS = {"nvidia": "CUDA", "amdgpu": "VULKAN"}  # that a driver's GPU is usually computed on
_NO_DEVICES = {"CPU", "BLAS", "RPC"}  # backends that need no GPU

# Names of llama.cpp -> those of /proc/cpuinfo, for instructions that its kernels use.
_X86 = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX_VNNI": "avx_vnni",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
}
_ARM = {
    "NEON": "asimd",
    "FP16_VA": "asimdhp",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
    "SME": "sme",
}


def versions(specrun: str, build: Build) -> Finding:
    """Which specrun, Python and llama.cpp run."""
    detail = (
        f"specrun {specrun}, Python {platform.python_version()}, llama-cpp-python {build.bindings}, "
        f"llama.cpp {build.version}"
    )
    return Finding("versions", "ok", detail)


def unusable(reason: str) -> Finding:
    """llama.cpp cannot be loaded at all."""
    return Finding("llama.cpp", "fail", f"it cannot be loaded: {reason}", REBUILD)


def backends(names: Collection[str], n_gpus: int, driver: str | None, has_nvidia: bool = False) -> Finding:
    """Whether the build can use the GPU of this machine.

    n_gpus: that llama.cpp sees. driver: `hardware.machine.gpu_driver`. has_nvidia: `hardware.machine.nvidia_card`.
    """
    compiled = f"compiled: {', '.join(names)}"
    for_gpus = [name for name in names if name not in _NO_DEVICES]
    if has_nvidia and not driver and not n_gpus:
        return Finding(
            "backends",
            "warn",
            f"{compiled}; this machine has a GPU of NVIDIA's, whose driver is not loaded",
            "install the driver and restart (Ubuntu: `sudo ubuntu-drivers install`); `nvidia-smi` must list the GPU",
        )
    if for_gpus and not n_gpus:
        return Finding(
            "backends",
            "warn",
            f"{compiled}; {' and '.join(for_gpus)} found no GPU, so everything is computed on the CPU",
            "check the driver: `nvidia-smi` (NVIDIA) or `vulkaninfo --summary` must list the GPU",
        )
    if driver and not for_gpus:
        backend = _BACKENDS.get(driver.partition(" ")[0], "VULKAN")
        return Finding(
            "backends",
            "warn",
            f"{compiled}; this machine has the GPU driver {driver}, which this build cannot use",
            f"CMAKE_ARGS=-DGGML_{backend}=on {REBUILD}",
        )
    return Finding("backends", "ok", compiled)


def unusable_gpu(names: Collection[str], n_gpus: int, driver: str | None, has_nvidia: bool) -> Finding | None:
    """The finding of `backends` where there surely is a GPU, and none can be used; else None."""
    if n_gpus or not (driver or has_nvidia):
        return None
    return backends(names, n_gpus, driver, has_nvidia)


def instructions(features: Iterable[str], flags: Collection[str]) -> Finding:
    """Compare what the build uses (`hardware.cpu.cpu_features`) with what the processor has (`read_flags`)."""
    used = {feature.partition("=")[0] for feature in features}
    known = _ARM if "asimd" in flags or "NEON" in used else _X86
    text = f"llama.cpp uses {', '.join(name for name in known if name in used) or 'none beyond the usual'}"
    if not flags:
        return Finding("instructions", "ok", f"{text}; this system does not list what the processor has")
    if lacking := [name for name, flag in known.items() if name in used and flag not in flags]:
        detail = f"llama.cpp was compiled for {', '.join(lacking)}, which this processor lacks; it will crash"
        return Finding("instructions", "fail", detail, REBUILD)
    if unused := [name for name, flag in known.items() if name not in used and flag in flags]:
        detail = f"{text}; it was compiled without {', '.join(unused)}, which this processor has, and is slower for it"
        return Finding("instructions", "warn", detail, f"CMAKE_ARGS=-DGGML_NATIVE=on {REBUILD}")
    return Finding("instructions", "ok", text)
