"""llama.cpp's build: versions, backends, instructions against the processor's, devices, and facts relied on."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterable, Sequence

from specrun.display_text import size_text
from specrun.doctor import Finding, rebuild
from specrun.doctor.probe import Build
from specrun.errors import LlamaError
from specrun.hardware.machine import Device, offload_devices

_BACKENDS = {"nvidia": "CUDA", "amdgpu": "VULKAN"}  # that a driver's GPU is usually computed on
_MUCH = 0.5  # of a GPU's memory; less of it free means that another program holds layers' places
_NO_DEVICES = {"CPU", "BLAS", "RPC"}  # backends that need no GPU

# Names of llama.cpp -> those of /proc/cpuinfo, for instructions that its kernels use.
_X86 = {
    "SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX_VNNI": "avx_vnni", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma",
    "BMI2": "bmi2", "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8",
}  # fmt: skip
_ARM = {
    "NEON": "asimd", "FP16_VA": "asimdhp", "DOTPROD": "asimddp", "MATMUL_INT8": "i8mm", "SVE": "sve", "SME": "sme",
}  # fmt: skip


def versions(specrun: str, build: Build) -> Finding:
    """Which specrun, Python and llama.cpp run."""
    llama = ", ".join(f"{name} {build.identity[name]}" for name in ("llama-cpp-python", "llama.cpp"))
    return Finding("versions", "ok", f"specrun {specrun}, Python {platform.python_version()}, {llama}")


def backends(names: Collection[str], n_gpus: int, driver: str | None, has_nvidia: bool = False) -> Finding:
    """Whether the build can use the GPU of this machine.

    n_gpus: that llama.cpp sees. driver: `hardware.machine.gpu_driver`. has_nvidia: `hardware.machine.nvidia_card`.
    """
    compiled = f"compiled: {', '.join(names)}"
    for_gpus = [name for name in names if name not in _NO_DEVICES]
    if has_nvidia and not driver and not n_gpus:
        what = "this machine has a GPU of NVIDIA's, whose driver is not loaded"
        fix = "install the driver and restart (Ubuntu: `sudo ubuntu-drivers install`); `nvidia-smi` must list the GPU"
    elif for_gpus and not n_gpus:
        what = f"{' and '.join(for_gpus)} found no GPU, so everything is computed on the CPU"
        fix = "check the driver: `nvidia-smi` (NVIDIA) or `vulkaninfo --summary` must list the GPU"
    elif driver and not for_gpus:
        what = f"this machine has the GPU driver {driver}, which this build cannot use"
        fix = rebuild(names, f"-DGGML_{_BACKENDS.get(driver.partition(' ')[0], 'VULKAN')}=on")
    else:
        return Finding("backends", "ok", compiled)
    return Finding("backends", "warn", f"{compiled}; {what}", fix)


def instructions(features: Iterable[str], flags: Collection[str], backends: Collection[str] = ()) -> Finding:
    """Compare what the build uses (`hardware.cpu.cpu_features`) with what the processor has (`read_flags`).

    backends: of the build.
    """
    used = {feature.partition("=")[0] for feature in features}
    known = _ARM if "asimd" in flags or "NEON" in used else _X86
    text = f"llama.cpp uses {', '.join(name for name in known if name in used) or 'none beyond the usual'}"
    if not flags:
        return Finding("instructions", "ok", f"{text}; this system does not list what the processor has")
    if lacking := [name for name, flag in known.items() if name in used and flag not in flags]:
        detail = f"llama.cpp was compiled for {', '.join(lacking)}, which this processor lacks; it will crash"
        return Finding("instructions", "fail", detail, rebuild(backends))
    # Without AMX some compilers make the only kernels that work (`llama.facts.reordered`).
    if unused := [name for name, flag in known.items() if name not in {*used, "AMX_INT8"} and flag in flags]:
        detail = f"{text}; it was compiled without {', '.join(unused)}, which this processor has, and is slower for it"
        return Finding("instructions", "warn", detail, rebuild(backends, "-DGGML_NATIVE=on"))
    return Finding("instructions", "ok", text)


def devices(
    found: Sequence[Device], run_layer: Callable[[int | None], float], backends: Collection[str] = ()
) -> list[Finding]:
    """A finding for each device. run_layer: `probe.run_layer`. backends: of the build."""
    return [_device(device, offload_devices(found), run_layer, rebuild(backends)) for device in found]


def _device(device: Device, gpus: Sequence[Device], run_layer: Callable[[int | None], float], fix: str) -> Finding:
    check, what = f"device {device.name}", device.description
    if device.kind != "CPU" and device.total_bytes:  # RAM has a line of its own
        what += f", {size_text(device.free_bytes)} of {size_text(device.total_bytes)} free"
    if device not in gpus and device.kind != "CPU":
        return Finding(check, "ok", f"{what}; llama.cpp puts no layers there")
    try:
        ms = run_layer(None if device.kind == "CPU" else gpus.index(device))
    except LlamaError as error:
        without = "" if device.kind == "CPU" else "update the driver, or run with `--gpu-layers 0`; else: "
        return Finding(check, "fail", f"{what}; a layer does not run there: {error}", without + fix)
    what += f"; a layer runs there ({ms:.1f} ms)"
    if device.kind == "GPU" and device.free_bytes < _MUCH * device.total_bytes:
        see = "`nvidia-smi`" if device.backend == "CUDA" else "`nvtop`"
        return Finding(check, "warn", f"{what}; others hold most of its memory", f"end what {see} lists")
    return Finding(check, "ok", what)
