"""llama.cpp's build: versions, backends, instructions against the processor's, devices, and facts relied on.

llama.cpp is asked about itself, and runs a layer on a device, in a process of its own. A library that is missing,
instructions that the processor lacks and drivers that crash then are findings, not the end of the command.
`specrun.doctor` itself never imports llama.cpp.
"""

from __future__ import annotations

import logging
import platform
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specrun.display_text import size_text
from specrun.doctor import FACT, Finding, known_build, rebuild
from specrun.errors import LlamaError
from specrun.hardware.machine import Device, offload_devices
from specrun.processes import child_process

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

_SECONDS = 30.0  # for one process; a GPU backend that compiles its kernels first takes several
_PROMPT = "def read_config(path):\n"
_N_CTX = 64  # tokens
_LAYERS = 2  # in llama.cpp's count, where the output is one: a block and the output
_OFFLOADED = re.compile(r"offloaded (\d+)/\d+ layers")


@dataclass(frozen=True)
class Build:
    """What llama.cpp says of itself."""

    identity: dict[str, str]  # `llama.library.identity`
    backends: Sequence[str]
    devices: Sequence[Device]
    system_info: str  # see `specrun.hardware.cpu`


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
    # Without AMX some compilers make the only kernels that work (`llama.facts.bits`).
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


# --- asking llama.cpp in a child process ------------------------------------------------------------------------------


def read_build(debug: bool = False) -> Build:
    """Ask llama.cpp. debug: show what it prints. Raises LlamaError if it cannot be loaded."""
    value = _answer({"ask": "build"}, "llama.cpp", debug)
    return Build(**(value | {"devices": [Device(**device) for device in value["devices"]]}))


def check_facts(backends: Collection[str], debug: bool = False) -> list[Finding]:
    """A finding for each fact about llama.cpp that specrun relies on, by an earlier check or a new one.

    If a check crashes or hangs, there is a single one, which says so. backends: of the build.
    """
    try:
        value = _answer({"ask": "facts"}, "the process that checked facts about llama.cpp", debug)
    except LlamaError as error:
        return [Finding("facts", "warn", str(error), known_build(backends))]
    return [Finding(**finding) for finding in value["findings"]]


def run_layer(gpu: int | None, debug: bool = False) -> float:
    """Milliseconds of a pass over a few tokens of the embedded target, with a block and the output on a device.

    gpu: index among the devices that layers are divided among; None for the CPU, which then computes all of them.
    Raises LlamaError if that fails, crashes, gives other logits than the CPU or takes half a minute.
    """
    return float(_answer({"ask": "layer", "gpu": gpu}, "the process that ran a layer", debug)["ms"])


def _answer(request: dict[str, Any], what: str, debug: bool) -> dict[str, Any]:
    end = time.monotonic() + _SECONDS

    def wait() -> None:
        if time.monotonic() > end:
            raise LlamaError(f"{what} gave no answer for {_SECONDS:.0f} seconds")

    return child_process.answer(__name__, request, what, wait, debug)


def serve(request: str) -> None:
    """In the child: print the answer to `request`, which is JSON, or an `error`."""
    answers: dict[str, Callable[..., dict[str, Any]]] = {"build": _build, "facts": _facts, "layer": _layer}
    child_process.reply(request, lambda given: answers[given.pop("ask")](**given))


def _build() -> dict[str, Any]:
    from specrun.llama import devices, library

    return {
        "identity": library.identity(),
        "backends": library.backends(),
        "devices": [asdict(device) for device in devices.devices()],
        "system_info": devices.system_info(),
    }


def _facts() -> dict[str, Any]:
    from specrun.llama import library
    from specrun.llama.facts.relied_on import FACTS, LAYERS_IN_TURN, why_not
    from specrun.llama.streaming import address_space

    findings, backends = [], library.backends()
    for fact in FACTS:
        check = f"{FACT}{fact.name}"
        try:
            if fact is LAYERS_IN_TURN:
                address_space.check_system()
        except address_space.CannotStreamError as reason:  # no other llama.cpp would change that
            findings.append(Finding("streaming", "ok", fact.notice(str(reason))))
            continue
        if why := why_not(fact):
            lacking = fact.needs if fact.needs and why_not(fact.needs) else fact
            options = lacking.rebuilt_with
            fix = rebuild(backends, *options) if options else known_build(backends)
            findings.append(Finding(check, "warn", fact.notice(why), fix))
        else:
            findings.append(Finding(check, "ok", fact.relied_on))
    return {"findings": list(map(asdict, findings))}


def _layer(gpu: int | None) -> dict[str, Any]:
    import numpy as np

    from specrun.llama_settings import LlamaSettings

    expected, ms, _ = _pass(LlamaSettings(threads=1))
    if not np.isfinite(expected).all():
        raise LlamaError("the logits that the CPU computes are no numbers")
    if gpu is not None:
        settings = LlamaSettings(threads=1, gpu_layers=_LAYERS, split_mode="none", main_gpu=gpu)
        logits, ms, n_offloaded = _pass(settings)
        if not n_offloaded:
            raise LlamaError("llama.cpp left all layers on the CPU")
        # Devices round otherwise than the CPU, some in float16. Wrong logits differ by about as much as they are large.
        if not np.linalg.norm(logits - expected) < 0.1 * np.linalg.norm(expected):
            raise LlamaError("the layer's results are wrong")
    return {"ms": ms}


def _pass(settings: Any) -> tuple[Any, float, int]:
    """float32[n_vocab] after the prompt, milliseconds of the second of two passes, and layers not on the CPU."""
    from specrun.catalog import embedded
    from specrun.llama import LlamaModel, library
    from specrun.llama.batch import committed_tokens
    from specrun.llama.context import ContextConfig, LlamaContext

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    library.logger.setLevel(logging.DEBUG)
    library.logger.addHandler(handler)
    try:
        with LlamaModel(embedded.TARGET, settings) as model:
            tokens = model.tokenize(_PROMPT, add_special=True)
            config = ContextConfig(_N_CTX, 1, len(tokens), 1, settings)
            with LlamaContext(model, config) as context:
                for _ in range(2):  # the first compiles kernels and reads the weights
                    context.remove(0, 0)
                    started = time.perf_counter()
                    logits = context.decode(committed_tokens(tokens, 0, 1, 1))[-1].copy()
                    ms = 1e3 * (time.perf_counter() - started)
    finally:
        library.logger.removeHandler(handler)
    match = _OFFLOADED.search("\n".join(lines))
    return logits, ms, int(match[1]) if match else 0
